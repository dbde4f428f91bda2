import pytest

from ferry import Deck, Lane, Vehicle


def car(plate, length=450, height=150):
    return Vehicle(plate, length, height)


@pytest.fixture
def deck():
    return Deck([Lane("port", 2400), Lane("middle", 2400, clearance=300), Lane("starboard", 1200)])


def test_a_new_lane_is_all_free():
    lane = Lane("port", 2400)
    assert (lane.used, lane.free) == (0, 2400)


def test_vehicles_use_up_a_lane():
    lane = Lane("port", 2400, vehicles=[car("A"), car("B", 600)])
    assert (lane.used, lane.free) == (1050, 1350)


def test_a_lane_refuses_what_is_too_long():
    lane = Lane("port", 1000, vehicles=[car("A", 600)])
    assert lane.accepts(car("B", 399))
    assert not lane.accepts(car("C", 401))


def test_a_lane_refuses_what_is_too_high(deck):
    assert not deck.lanes[1].accepts(car("A", height=301))
    assert deck.lanes[1].accepts(car("B", height=300))


def test_the_fullest_lane_is_filled_first(deck):
    assert deck.place(car("A")).name == "starboard"
    assert deck.place(car("B", 1000)).name == "port"


def test_high_vehicles_skip_the_low_lane(deck):
    deck.place(car("A", 1000))
    deck.place(car("B", 2000, height=400))
    assert deck.lane_of("B").name == "port"


def test_a_full_deck_places_nothing(deck):
    for lane in deck.lanes:
        lane.vehicles = [car("X", lane.length)]
    assert deck.place(car("B", 200)) is None
    assert deck.free == 0


def test_removing_frees_the_lane(deck):
    deck.place(car("A"))
    assert deck.remove("A")
    assert deck.free == 6000
    assert not deck.remove("A")
