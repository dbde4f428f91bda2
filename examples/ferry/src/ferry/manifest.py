"""The list that the crew prints before departure."""

from ferry.sailing import Sailing


def metres(centimetres: int) -> str:
    """Write a length as metres with one decimal, as the crew reads it."""
    return f"{centimetres / 100:.1f} m"


def manifest(sailing: Sailing) -> str:
    """Write the manifest of a sailing: a line per lane, then who waits."""
    lines = [f"{sailing.departs}  {sailing.passengers} passengers"]
    for lane in sailing.deck.lanes:
        plates = ", ".join(vehicle.plate for vehicle in lane.vehicles) or "empty"
        lines.append(f"  {lane.name}: {plates} ({metres(lane.free)} left)")
    if sailing.waiting:
        lines.append("  waiting: " + ", ".join(booking.reference for booking in sailing.waiting))
    return "\n".join(lines) + "\n"
