"""The tables of the shop."""

from django.db import models


class Order(models.Model):
    """What somebody ordered."""

    number = models.CharField(max_length=36, primary_key=True)
    quantity = models.PositiveIntegerField()

    def __str__(self) -> str:
        return self.number


class Reservation(models.Model):
    """Stock that an order takes: once for each."""

    order_number = models.CharField(max_length=36)
    quantity = models.PositiveIntegerField()
    receipt = models.TextField(default="")

    def __str__(self) -> str:
        return self.order_number
