"""The S3-compatible server: s3proxy over a folder, which checks credentials and supports conditional writes."""

from __future__ import annotations

from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from local_stack.environment import HOST, LANDING, REGION, S3_USER, WAREHOUSE, inherited
from local_stack.folder import StackFolder, write_for_owner
from local_stack.java import java, jvm_words
from local_stack.options import Options
from local_stack.server import Server
from pipeline_assets.config import load_settings
from resources.spark.jars import Jar, fetch, jars_folder

S3PROXY = Jar(
    "org.gaul",
    "s3proxy",
    "4.1.0",
    "a4d025969aaf796616ed4b1e2491d87d455ce84bb28cb9db086b2e6aaa68b48d",
    classifier="jar-with-dependencies",
)
_PORT = "STACK_PORT_S3"


def objects(folder: StackFolder, options: Options) -> Server:
    """Return the server; raises EngineError where there is no Java for it."""
    port = options.port(_PORT)
    jar = jars_folder(load_settings()) / S3PROXY.file_name
    properties = folder.root / "s3proxy.properties"
    return Server(
        name="objects",
        command=(java(), "-Xmx512m", *jvm_words(folder), "-jar", str(jar), "--properties", str(properties)),
        environment=inherited(folder),
        folder=folder.root,
        ports={_PORT: port},
        is_well=lambda: _answers(folder, port),
        prepare=lambda: _configure(folder, port),
        complete=lambda: _make_buckets(folder, port),
    )


def _configure(folder: StackFolder, port: int) -> None:
    """Download the jar if it is missing, and write the configuration, which only its owner can read; raises JarError."""
    settings = load_settings()
    fetch(jars_folder(settings), (S3PROXY,), url=settings.jars_url)
    lines = {
        "s3proxy.endpoint": f"http://{HOST}:{port}",
        "s3proxy.authorization": "aws-v4",
        "s3proxy.identity": S3_USER,
        "s3proxy.credential": folder.secrets()["s3"],
        "jclouds.provider": "filesystem-nio2",
        "jclouds.filesystem.basedir": str(folder.objects).replace("\\", "\\\\"),
    }
    text = "".join(f"{name}={value}\n" for name, value in lines.items())
    write_for_owner(folder.root / "s3proxy.properties", text)


def _make_buckets(folder: StackFolder, port: int) -> None:
    client = _client(folder, port)
    there = {bucket["Name"] for bucket in client.list_buckets()["Buckets"]}
    for name in (LANDING, WAREHOUSE):
        if name not in there:
            client.create_bucket(Bucket=name)


def _answers(folder: StackFolder, port: int) -> bool:
    try:
        _client(folder, port).list_buckets()
    except (BotoCoreError, ClientError):
        return False
    return True


def _client(folder: StackFolder, port: int) -> Any:
    return boto3.client(
        "s3",
        endpoint_url=f"http://{HOST}:{port}",
        aws_access_key_id=S3_USER,
        aws_secret_access_key=folder.secrets()["s3"],
        region_name=REGION,
        config=Config(retries={"total_max_attempts": 1}, connect_timeout=3, read_timeout=10, proxies={}),
    )
