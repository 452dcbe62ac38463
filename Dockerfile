# What each step does is a script below deploy/build/, which `make test` runs outside of a container as well.
# A digest is stronger than a version: --build-arg PYTHON_IMAGE=python:3.11.14-slim-bookworm@sha256:…
ARG PYTHON_IMAGE=python:3.11.14-slim-bookworm

FROM ${PYTHON_IMAGE} AS build
COPY deploy/build/packages.sh /src/deploy/build/packages.sh
RUN sh /src/deploy/build/packages.sh build
COPY . /src
RUN sh /src/deploy/build/install.sh /opt/tidemark \
    && sh /src/deploy/build/warm.sh /opt/tidemark \
    && sh /src/deploy/build/seal.sh /opt/tidemark

FROM ${PYTHON_IMAGE} AS run
COPY deploy/build/packages.sh /tmp/packages.sh
RUN sh /tmp/packages.sh run \
    && useradd --uid 10001 --user-group --no-create-home --home-dir /var/lib/tidemark --shell /usr/sbin/nologin tidemark \
    && install -d -o 10001 -g 10001 /var/lib/tidemark
COPY --from=build /opt/tidemark /opt/tidemark

ENV PATH=/opt/tidemark/venv/bin:$PATH \
    HOME=/tmp \
    DAGSTER_HOME=/var/lib/tidemark/dagster \
    CODE_SERVER_HOST=code-server \
    CODE_SERVER_PORT=4000 \
    DAGSTER_DISABLE_TELEMETRY=1 \
    PYTHONUNBUFFERED=1
USER 10001:10001
WORKDIR /var/lib/tidemark
# All that is written goes here and to /tmp: the rest of the file system may be read-only.
VOLUME ["/var/lib/tidemark", "/tmp"]
EXPOSE 3000 4000
HEALTHCHECK --interval=30s --timeout=20s --start-period=120s --retries=3 CMD ["/opt/tidemark/bin/health.sh", "code-server"]
ENTRYPOINT ["/opt/tidemark/bin/entrypoint.sh"]
CMD ["code-server"]
