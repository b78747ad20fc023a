"""unittest, and so Django's test cases: a cluster for the tests of one class."""

import unittest

from confluent_kafka import Producer

from riverrun.testing import ClusterMixin


class GreetingTest(ClusterMixin, unittest.TestCase):
    def test_greeting_is_written(self) -> None:
        topic = self.kafka.topic()
        producer = Producer({"bootstrap.servers": self.kafka.bootstrap})
        producer.produce(topic, "hello")
        producer.flush()
        self.assertEqual([record.text for record in self.kafka.records(topic)], ["hello"])


if __name__ == "__main__":
    unittest.main()
