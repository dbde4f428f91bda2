import pytest

from ferry import Tariff, Vehicle


@pytest.mark.parametrize("length, cents", [(400, 2300), (401, 2650), (450, 2650), (1200, 5100)])
def test_started_metres_are_charged(length, cents):
    assert Tariff().vehicle(Vehicle("A", length)) == cents


def test_high_vehicles_pay_more():
    assert Tariff().vehicle(Vehicle("A", 400, 210)) == 3100
    assert Tariff().vehicle(Vehicle("A", 400, 209)) == 2300


def test_the_driver_travels_with_the_vehicle():
    assert Tariff().booking(Vehicle("A", 400), 1) == 2300
    assert Tariff().booking(Vehicle("A", 400), 3) == 3140


def test_islanders_pay_half():
    assert Tariff(base=901).booking(Vehicle("A", 400), 1, islander=True) == 1150


def test_nobody_at_the_wheel():
    with pytest.raises(ValueError):
        Tariff().booking(Vehicle("A", 400), 0)
