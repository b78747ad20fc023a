"""Orders that were consumed."""

from django.db import models


class Order(models.Model):
    """Identified by the place of its record, so a record that is read twice is stored once."""

    partition = models.IntegerField()
    offset = models.BigIntegerField()
    customer = models.CharField(max_length=100)
    amount = models.IntegerField()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["partition", "offset"], name="one_order_per_record")
        ]
