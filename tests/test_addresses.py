"""Addresses without what stands in them for nobody else to see."""

import pytest

from meds_openrlhf.addresses import credentials_in, names_a_user, without_credentials


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("s3://key@bucket/a#b", "s3://bucket/a"),
        ("s3://KEY:sec/r@et@bucket/a", "s3://bucket/a"),
        ("s3://KEY:sec?ret@bucket/a", "s3://bucket/a"),
        ("hdfs://name:8020/a@b", "hdfs://name:8020/a@b"),
        ("s3://bucket/a@b", "s3://bucket/a@b"),
        ("/data/a@b#1?", "/data/a@b#1?"),
    ],
)
def test_credentials_are_all_that_is_taken_from_an_address(address: str, shown: str) -> None:
    assert without_credentials(address) == shown


def test_white_space_ends_an_address_in_a_text() -> None:
    assert names_a_user("from s3://KEY:sec/r@et@bucket/a on")
    assert not names_a_user("see http://host:80/a and write to me@host")
    assert credentials_in("from s3://KEY:sec/r@et@bucket/a to https://token@host/") == ["KEY:sec/r@et", "token"]
    assert credentials_in("see http://host:80/a and write to me@host") == []
