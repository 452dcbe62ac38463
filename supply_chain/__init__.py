"""Tidemark's dependencies: packages and jars, their licences, known vulnerabilities, the SBOM beside the wheel."""
