import pytest

from ferry import Booking, Deck, Lane, Sailing, Vehicle, manifest


def sailing(*lengths, seats=40):
    return Sailing("07:30", Deck([Lane(f"lane {n}", length) for n, length in enumerate(lengths, 1)]), seats)


def party(reference, length=450, passengers=2):
    return Booking(reference, Vehicle("P-" + reference, length), passengers)


def test_there_is_room_for_the_first():
    crossing = sailing(2400)
    assert crossing.request(party("a"))
    assert crossing.passengers == 2


def test_no_seats_left_means_waiting():
    crossing = sailing(2400, seats=3)
    assert crossing.request(party("a"))
    assert not crossing.request(party("b"))
    assert [booking.reference for booking in crossing.waiting] == ["b"]
    assert crossing.deck.lane_of("P-b") is None


def test_four_vans_fill_a_lane():
    crossing = sailing(2400)
    assert [crossing.request(party(name, 600)) for name in "abcde"] == [True, True, True, True, False]


def test_a_reference_is_used_once():
    crossing = sailing(2400)
    crossing.request(party("a"))
    with pytest.raises(ValueError):
        crossing.request(party("a"))


def test_the_freed_place_goes_to_the_same_size():
    crossing = sailing(1000)
    crossing.request(party("a", 900))
    crossing.request(party("b", 900))
    assert crossing.cancel("a") == ["b"]
    assert crossing.waiting == []


def test_a_shorter_vehicle_may_overtake_in_the_queue():
    crossing = sailing(1000)
    crossing.request(party("a", 500))
    crossing.request(party("b", 450))
    crossing.request(party("c", 700))
    crossing.request(party("d", 400))
    assert crossing.cancel("b") == ["d"]
    assert [booking.reference for booking in crossing.waiting] == ["c"]


def test_leaving_the_waiting_list_moves_nobody():
    crossing = sailing(500)
    crossing.request(party("a", 450))
    crossing.request(party("b", 450))
    assert crossing.cancel("b") == []
    assert crossing.waiting == []


def test_the_manifest_names_lanes_and_waiting():
    crossing = sailing(1000, 1000, seats=4)
    crossing.request(party("a", 450))
    crossing.request(party("b", 450))
    crossing.request(party("c", 450))
    assert manifest(crossing) == (
        "07:30  4 passengers\n"
        "  lane 1: P-a, P-b (1.0 m left)\n"
        "  lane 2: empty (10.0 m left)\n"
        "  waiting: c\n"
    )
