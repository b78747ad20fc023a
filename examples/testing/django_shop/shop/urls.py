"""The paths of the project."""

from django.urls import path
from orders.views import accept_order

urlpatterns = [path("orders", accept_order)]
