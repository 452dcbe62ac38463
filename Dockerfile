FROM python:3.11-slim-bookworm

# Debian keeps only the newest version of a package, so a pinned one breaks the build on the next security fix.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends make openjdk-17-jre-headless \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 1000 tidemark \
    && mkdir -p /opt/tidemark \
    && chown tidemark /opt/tidemark

ENV PIP_NO_CACHE_DIR=1
USER 1000
WORKDIR /opt/tidemark
COPY --chown=tidemark . .
RUN make setup

EXPOSE 4000
CMD [".venv/bin/dagster", "code-server", "start", "-h", "0.0.0.0", "-p", "4000", "-m", "pipeline_assets.definitions", "-a", "defs"]
