"""The web side: views publish in the block that ATOMIC_REQUESTS opens."""

from django.http import HttpRequest, JsonResponse
from django.urls import path
from django.views.decorators.http import require_POST

from postroad.django import within
from shop.events import OrderPlaced
from shop.models import Order


@require_POST
def place(request: HttpRequest, number: str, quantity: int) -> JsonResponse:
    """Place an order, and tell that it was placed."""
    order = Order.objects.create(number=number, quantity=quantity)
    identity = within().publish(OrderPlaced(number=order.number, quantity=quantity), key=order.number)
    if quantity > 100:  # Whatever fails after the publish takes it back.
        raise OverflowError("too many")
    return JsonResponse({"event": str(identity)}, status=201)


urlpatterns = [path("orders/<str:number>/<int:quantity>", place)]
