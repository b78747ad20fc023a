"""The table of orders, as `manage.py makemigrations` wrote it."""

from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="Order",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("partition", models.IntegerField()),
                ("offset", models.BigIntegerField()),
                ("customer", models.CharField(max_length=100)),
                ("amount", models.IntegerField()),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(
                        fields=("partition", "offset"), name="one_order_per_record"
                    )
                ],
            },
        ),
    ]
