"""A departure with its bookings and its waiting list."""

from dataclasses import dataclass
from typing import Dict, List

from ferry.deck import Deck, Vehicle


@dataclass(frozen=True)
class Booking:
    """One party: a vehicle and the people in it."""

    reference: str
    vehicle: Vehicle
    passengers: int = 1


class Sailing:
    """One crossing of the ship."""

    def __init__(self, departs: str, deck: Deck, seats: int) -> None:
        self.departs = departs
        self.deck = deck
        self.seats = seats
        self.confirmed: Dict[str, Booking] = {}
        self.waiting: List[Booking] = []

    @property
    def passengers(self) -> int:
        return sum(booking.passengers for booking in self.confirmed.values())

    def request(self, booking: Booking) -> bool:
        """Confirm a booking if there is room, else put it on the waiting list."""
        if booking.reference in self.confirmed:
            raise ValueError("reference used twice: " + booking.reference)
        if self._load(booking):
            return True
        self.waiting.append(booking)
        return False

    def cancel(self, reference: str) -> List[str]:
        """Cancel a booking and return the references that moved up from the waiting list."""
        booking = self.confirmed.pop(reference, None)
        if booking is None:
            self.waiting = [each for each in self.waiting if each.reference != reference]
            return []
        self.deck.remove(booking.vehicle.plate)
        moved = [each for each in self.waiting if self._load(each)]
        self.waiting = [each for each in self.waiting if each not in moved]
        return [each.reference for each in moved]

    def _load(self, booking: Booking) -> bool:
        if self.passengers + booking.passengers > self.seats:
            return False
        if self.deck.place(booking.vehicle) is None:
            return False
        self.confirmed[booking.reference] = booking
        return True
