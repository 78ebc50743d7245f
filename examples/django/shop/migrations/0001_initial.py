"""The tables of the shop."""

from typing import ClassVar

from django.db import migrations, models


class Migration(migrations.Migration):
    """Orders and reservations."""

    initial = True
    dependencies: ClassVar = [("postroad", "0001_road")]
    operations: ClassVar = [
        migrations.CreateModel(
            name="Order",
            fields=[
                ("number", models.CharField(max_length=36, primary_key=True, serialize=False)),
                ("quantity", models.PositiveIntegerField()),
            ],
        ),
        migrations.CreateModel(
            name="Reservation",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("order_number", models.CharField(max_length=36)),
                ("quantity", models.PositiveIntegerField()),
                ("receipt", models.TextField(default="")),
            ],
        ),
    ]
