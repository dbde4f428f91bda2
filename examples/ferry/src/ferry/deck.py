"""The car deck: lanes, and which vehicle stands in which lane."""

from dataclasses import dataclass, field
from typing import List, Optional


@dataclass(frozen=True)
class Vehicle:
    """A vehicle by its number plate; measures in centimetres."""

    plate: str
    length: int
    height: int = 150


@dataclass
class Lane:
    """One lane of the deck; vehicles stand in it bumper to bumper."""

    name: str
    length: int
    clearance: int = 450
    vehicles: List[Vehicle] = field(default_factory=list)

    @property
    def used(self) -> int:
        return sum(vehicle.length for vehicle in self.vehicles)

    @property
    def free(self) -> int:
        return self.length - self.used

    def accepts(self, vehicle: Vehicle) -> bool:
        """Say whether the vehicle fits under this lane's ceiling and in what is left of it."""
        if vehicle.height > self.clearance:
            return False
        return vehicle.length < self.free


class Deck:
    """All lanes of a ship, in the order in which the crew fills them."""

    def __init__(self, lanes: List[Lane]) -> None:
        self.lanes = lanes

    @property
    def free(self) -> int:
        return sum(lane.free for lane in self.lanes)

    def lane_of(self, plate: str) -> Optional[Lane]:
        """Return the lane in which a vehicle stands, or None if it is not on board."""
        for lane in self.lanes:
            if any(vehicle.plate == plate for vehicle in lane.vehicles):
                return lane
        return None

    def place(self, vehicle: Vehicle) -> Optional[Lane]:
        """Put a vehicle into the fullest lane that takes it; None if no lane does."""
        candidates = [lane for lane in self.lanes if lane.accepts(vehicle)]
        if not candidates:
            return None
        lane = min(candidates, key=lambda each: each.free)
        lane.vehicles.append(vehicle)
        return lane

    def remove(self, plate: str) -> bool:
        """Take a vehicle off the deck; False if it was not there."""
        lane = self.lane_of(plate)
        if lane is None:
            return False
        lane.vehicles = [vehicle for vehicle in lane.vehicles if vehicle.plate != plate]
        return True
