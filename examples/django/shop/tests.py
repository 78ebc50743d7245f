"""What Django's own test cases see of it: `manage.py test`."""

from django.db import connection, transaction
from django.test import Client, TestCase, TransactionTestCase

from postroad.django import within
from postroad.errors import UsageError
from shop.events import OrderPlaced
from shop.models import Order


def staged() -> int:
    """How many events were published, as far as this connection sees."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM postroad.event")
        return int(cursor.fetchone()[0])


class Placing(TestCase):
    """In a `TestCase` the test sees what it published; it is rolled back at the end, and nobody else ever sees it."""

    def test_an_order_and_its_event(self) -> None:
        """One of each."""
        answer = self.client.post("/orders/A-1/2")
        self.assertEqual(answer.status_code, 201)
        self.assertEqual((Order.objects.count(), staged()), (1, 1))

    def test_an_order_that_fails_leaves_neither(self) -> None:
        """The view's block is rolled back, which is a savepoint here."""
        answer = Client(raise_request_exception=False).post("/orders/A-1/101")
        self.assertEqual(answer.status_code, 500)
        self.assertEqual((Order.objects.count(), staged()), (0, 0))

    def test_what_production_refuses_is_refused(self) -> None:
        """The test's own block is not the author's."""
        with self.assertRaisesMessage(UsageError, "PR105"):
            within().publish(OrderPlaced(number="A-1", quantity=1))


class Committing(TransactionTestCase):
    """Here blocks commit. Its flush empties the tables of models, not Postroad's: count what is new."""

    def test_an_order_and_its_event_are_committed(self) -> None:
        """Others would see them."""
        before = staged()
        with transaction.atomic():
            within().publish(OrderPlaced(number="A-1", quantity=1))
        self.assertEqual(staged(), before + 1)
