"""An App whose declarations contradict each other."""

from orders import book, orders

from postroad.runtime.app import App

app = App("twice", publishes=[orders], consumers=[book, book])
