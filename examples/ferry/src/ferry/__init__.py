"""Loading plans and fares for a small car ferry."""

from ferry.deck import Deck, Lane, Vehicle
from ferry.fares import Tariff
from ferry.manifest import manifest
from ferry.sailing import Booking, Sailing

__all__ = ["Booking", "Deck", "Lane", "Sailing", "Tariff", "Vehicle", "manifest"]
