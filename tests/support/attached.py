"""Processes that use another one's JVM, because starting their own takes most of their time."""

from __future__ import annotations

import os

from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

_PORT, _SECRET = "PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET"


def gateway_variables() -> dict[str, str]:
    """Variables for a process that is to `attach` to this one's session."""
    assert SparkContext._gateway is not None, "ask for the fixture `spark`"
    jvm = SparkContext._gateway.java_parameters
    return {_PORT: str(jvm.port), _SECRET: jvm.auth_token}


def is_attached() -> bool:
    return _PORT in os.environ


def attach() -> SparkSession:
    gateway = launch_gateway()
    jvm = gateway.jvm
    running = jvm.org.apache.spark.SparkContext.getOrCreate()
    context = jvm.org.apache.spark.api.java.JavaSparkContext.fromSparkContext(running)
    return SparkSession(SparkContext(gateway=gateway, jsc=context, conf=SparkConf(_jconf=context.getConf())))
