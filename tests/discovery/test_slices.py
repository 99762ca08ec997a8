"""EndpointSlices and their events → backends."""

from typing import Any

import msgspec
import pytest

from ferrule.discovery.slices import Event, Expired, Slice, SliceList, SliceSet, build_specs


def endpoint(address: str, uid: str = "") -> dict[str, Any]:
    return {"addresses": [address], "targetRef": {"kind": "Pod", "uid": uid} if uid else None}


def slice_of(
    *endpoints: dict[str, Any], name: str = "vllm-x1", version: int = 5, family: str = "IPv4"
) -> dict[str, Any]:
    ports = [{"name": "http", "port": 8000, "protocol": "TCP"}, {"name": "metrics", "port": 9090}]
    return {
        "metadata": {
            "name": name,
            "resourceVersion": str(version),
            "labels": {"kubernetes.io/service-name": "vllm"},
        },
        "addressType": family,
        "endpoints": list(endpoints),
        "ports": ports,
    }


def urls(*slices: dict[str, Any], port: int | str = 8000) -> list[str]:
    return [spec.url for spec in build_specs(msgspec.convert(list(slices), list[Slice]), port)]


@pytest.mark.parametrize(
    ("conditions", "serves"),
    [
        ({"ready": True}, True),
        ({"ready": False}, False),
        ({"ready": None}, True),
        ({}, True),
        ({"ready": True, "terminating": True}, False),
        ({"ready": False, "serving": True, "terminating": True}, False),
        ({"ready": True, "serving": True, "terminating": False}, True),
    ],
)
def test_only_ready_endpoints_that_do_not_terminate(
    conditions: dict[str, bool | None], serves: bool
) -> None:
    assert bool(urls(slice_of(endpoint("10.0.0.1") | {"conditions": conditions}))) is serves


def test_several_slices_are_one_list() -> None:
    one = slice_of(endpoint("10.0.0.2"), endpoint("10.0.0.1"), name="b")
    other = slice_of(endpoint("10.0.0.1"), endpoint("10.0.0.3"), name="a")
    assert urls(one, other) == [
        "http://10.0.0.1:8000",
        "http://10.0.0.2:8000",
        "http://10.0.0.3:8000",
    ]


def test_a_pod_of_both_families_is_one_backend_whatever_the_order() -> None:
    four = slice_of(endpoint("10.0.0.1", uid="pod-1"), name="z")
    six = slice_of(
        endpoint("fd00::1", uid="pod-1"), endpoint("fd00::2", uid="pod-2"), name="a", family="IPv6"
    )
    assert urls(four, six) == urls(six, four) == ["http://10.0.0.1:8000", "http://[fd00::2]:8000"]


@pytest.mark.parametrize(
    ("port", "found"),
    [
        (8000, ["http://10.0.0.1:8000"]),
        (1234, ["http://10.0.0.1:1234"]),
        ("metrics", ["http://10.0.0.1:9090"]),
        ("other", []),
    ],
)
def test_a_port_by_number_or_by_name(port: int | str, found: list[str]) -> None:
    assert urls(slice_of(endpoint("10.0.0.1")), port=port) == found


def test_null_members_count_as_absent() -> None:
    empty = slice_of() | {"endpoints": None, "ports": None}
    addressless = slice_of({"addresses": []}, {"addresses": ["10.0.0.9"], "conditions": None})
    assert urls(empty, addressless) == ["http://10.0.0.9:8000"]


def known(version: int = 10) -> SliceSet:
    listed = {
        "kind": "EndpointSliceList",
        "metadata": {"resourceVersion": str(version)},
        "items": [slice_of(endpoint("10.0.0.1"))],
    }
    return SliceSet.from_list(msgspec.convert(listed, SliceList))


def event(kind: str, content: Any) -> Event:
    return Event(kind, msgspec.Raw(msgspec.json.encode(content)))


@pytest.mark.parametrize(
    ("kind", "content", "found"),
    [
        (
            "ADDED",
            slice_of(endpoint("10.0.0.2"), name="n", version=11),
            ["http://10.0.0.1:8000", "http://10.0.0.2:8000"],
        ),
        ("MODIFIED", slice_of(endpoint("10.0.0.3"), version=11), ["http://10.0.0.3:8000"]),
        ("DELETED", slice_of(endpoint("10.0.0.1"), version=11), []),
        ("BOOKMARK", {"metadata": {"resourceVersion": "12"}}, ["http://10.0.0.1:8000"]),
        ("MODIFIED", slice_of(endpoint("10.0.0.3"), version=10), ["http://10.0.0.1:8000"]),
        ("DELETED", slice_of(version=3), ["http://10.0.0.1:8000"]),
    ],
)
def test_events(kind: str, content: Any, found: list[str]) -> None:
    state = known(version=10)
    state.apply(event(kind, content))
    assert [spec.url for spec in build_specs(state.by_name.values(), 8000)] == found


def test_versions_that_are_no_numbers_are_taken_as_they_come() -> None:
    state = known()
    changed = slice_of(endpoint("10.0.0.4"))
    changed["metadata"]["resourceVersion"] = "v-a"
    assert state.apply(event("MODIFIED", changed))
    assert state.version == "v-a"


def test_an_error_event_says_that_the_version_expired() -> None:
    with pytest.raises(Expired, match="410 too old"):
        known().apply(
            event("ERROR", {"kind": "Status", "code": 410, "message": "too old resource version"})
        )


@pytest.mark.parametrize(
    ("kind", "content"),
    [
        ("MODIFIED", {}),
        ("MODIFIED", []),
        ("ADDED", {"metadata": {}}),
        ("BOOKMARK", {}),
        ("SURPRISE", slice_of(version=99)),
    ],
)
def test_malformed_events_are_refused(kind: str, content: Any) -> None:
    with pytest.raises(msgspec.DecodeError):
        known().apply(event(kind, content))


@pytest.mark.parametrize(
    "body", [b"{}", b"[]", b"null", b'{"kind":"Status","metadata":{},"code":500}', b"<html>", b""]
)
def test_other_json_is_refused_and_not_taken_for_an_empty_list(body: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        msgspec.json.decode(body, type=SliceList)
