"""Tests of the application with a real cluster: `python manage.py test`."""

from django.core.management import call_command
from django.test import TestCase

from orders.models import Order
from riverrun.testing import ClusterMixin


class OrdersTest(ClusterMixin, TestCase):
    def setUp(self) -> None:
        self.topic = self.kafka.topic(partitions=3)
        self.enterContext(
            self.settings(KAFKA_BOOTSTRAP=self.kafka.bootstrap, ORDERS_TOPIC=self.topic)
        )

    def post(self, customer: str, amount: int) -> int:
        order = {"customer": customer, "amount": amount}
        return self.client.post("/orders", order, content_type="application/json").status_code

    def test_an_accepted_order_is_in_the_topic(self) -> None:
        self.assertEqual(self.post("anna", 3), 202)
        [record] = self.kafka.records(self.topic)
        self.assertEqual((record.key, record.text), (b"anna", '{"customer": "anna", "amount": 3}'))

    def test_consumed_orders_are_in_the_database(self) -> None:
        for customer, amount in (("anna", 3), ("bert", 4), ("anna", 5)):
            self.post(customer, amount)
        call_command("consume_orders", "--limit", "3")
        amounts = Order.objects.filter(customer="anna").order_by("offset")
        self.assertEqual([order.amount for order in amounts], [3, 5])
        self.assertEqual(Order.objects.count(), 3)
        self.assertEqual(self.kafka.groups()["orders"].lag, 0)
