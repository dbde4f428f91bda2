"""What a crossing costs."""

from dataclasses import dataclass

from ferry.deck import Vehicle


@dataclass(frozen=True)
class Tariff:
    """Prices of one route, in cents."""

    base: int = 900
    per_metre: int = 350
    passenger: int = 420
    high_vehicle: int = 800
    high_from: int = 210

    def vehicle(self, vehicle: Vehicle) -> int:
        """Price a vehicle by its started metres, with a supplement for high ones."""
        metres = -(-vehicle.length // 100)
        price = self.base + metres * self.per_metre
        if vehicle.height >= self.high_from:
            price += self.high_vehicle
        return price

    def booking(self, vehicle: Vehicle, passengers: int, islander: bool = False) -> int:
        """Price a whole booking; islanders pay half, rounded down to the cent."""
        if passengers < 1:
            raise ValueError("a booking needs at least its driver")
        total = self.vehicle(vehicle) + (passengers - 1) * self.passenger
        return total // 2 if islander else total
