"""The grammar of sasl.jaas.config."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from riverrun.security.jaas import JaasError, parse_jaas, quoted

MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
SECRET = "hunter2"


def test_file_of_an_administrator_is_understood() -> None:
    entry = parse_jaas(
        f'{MODULE} required\n  username="node"\n  password="node-secret"\n'
        f'  user_alice="alice-secret"\n  user_bob="bob-secret";\n'
    )
    assert (entry.module, entry.username, entry.password) == (MODULE, "node", "node-secret")
    assert entry.users() == {"alice": "alice-secret", "bob": "bob-secret"}


@pytest.mark.parametrize("value", ['"secret"', "secret"])
def test_quotation_marks_are_optional(value: str) -> None:
    assert parse_jaas(f"{MODULE} required user_ann={value};").users() == {"ann": "secret"}


def test_module_without_options_has_no_users() -> None:
    entry = parse_jaas("ScramLoginModule required;")
    assert (entry.username, entry.password, entry.users()) == (None, None, {})


@given(st.text())
def test_any_quoted_value_is_read_back(value: str) -> None:
    assert parse_jaas(f"{MODULE} required password={quoted(value)};").password == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        MODULE,
        f'{MODULE} required password="{SECRET}"',
        f'{MODULE} perhaps password="{SECRET}";',
        f'{MODULE} required password="{SECRET};',
        f'{MODULE} required password "{SECRET}";',
        f'{MODULE} required password="{SECRET}" username;',
        f'{MODULE} required password="{SECRET}"; {MODULE} required;',
        f"{MODULE} required password='{SECRET}';",
    ],
)
def test_invalid_text_is_refused_without_its_secrets(text: str) -> None:
    with pytest.raises(JaasError) as refused:
        parse_jaas(text)
    assert SECRET not in str(refused.value)
