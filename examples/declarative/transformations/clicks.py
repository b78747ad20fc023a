"""A streaming table of clicks, a view of purchases by page, and a topic of purchases."""

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

BOOTSTRAP = os.environ.get("RIVERRUN_BOOTSTRAP", "127.0.0.1:9092")
SCHEMA = "id BIGINT, user STRING, page STRING, action STRING, time TIMESTAMP"


@dp.table
def clicks() -> DataFrame:
    spark = SparkSession.active()
    return (
        spark.readStream.format("riverrun")
        .option("kafka.bootstrap.servers", BOOTSTRAP)
        .option("subscribe", "clicks")
        .option("startingOffsets", "earliest")
        .load()
        .selectExpr(f"from_json(CAST(value AS STRING), '{SCHEMA}') AS click")
        .selectExpr("click.*")
    )


@dp.materialized_view
def purchases_by_page() -> DataFrame:
    spark = SparkSession.active()
    return spark.table("clicks").where("action = 'buy'").groupBy("page").count()


dp.create_sink(
    "purchases", "riverrun", {"kafka.bootstrap.servers": BOOTSTRAP, "topic": "purchases"}
)


@dp.append_flow(target="purchases")
def purchases_to_topic() -> DataFrame:
    spark = SparkSession.active()
    return (
        spark.readStream.table("clicks")
        .where("action = 'buy'")
        .selectExpr("user AS key", "to_json(struct(id, user, page, time)) AS value")
    )
