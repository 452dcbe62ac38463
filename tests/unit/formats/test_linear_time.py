"""What is delivered costs no more than its length to read, whatever it is."""

from __future__ import annotations

import time
from datetime import date

import pytest

from pipeline_assets.formats.amplitude.lines import LineParser

_LENGTH = 250_000
_ADVERSE = {
    "digits that end in a letter": lambda n: f'"{"1" * n}x"',
    "digits": lambda n: "1" * n,
    "digits as text": lambda n: f'"{"1" * n}"',
    "a fraction": lambda n: f'"1.{"0" * n}1"',
    "zeros": lambda n: f'"{"0" * n}1"',
    "an exponent": lambda n: f'"1e{"9" * n}"',
    "a small exponent": lambda n: f'"1{"0" * n}e-{n}"',
    "points": lambda n: f'"{"1." * (n // 2)}"',
    "signs": lambda n: f'"{"-" * n}1"',
    "blanks": lambda n: f'"{" " * n}x"',
    "seconds": lambda n: f'"2026-02-02 10:00:00.000000{"0" * n}x"',
    "colons": lambda n: f'"{":00.0000000" * (n // 11)}"',
    "surrogates": lambda n: '"' + "\\ud83d" * (n // 6) + '"',
    "brackets": lambda n: "[" + "[]," * (n // 3) + "1]",
    "escapes": lambda n: '"' + "\\\\[" * (n // 3) + '"',
    "quotes": lambda n: '"' + '\\"[' * (n // 3) + '"',
    "an open string": lambda n: '"' + "x" * n,
    "letters": lambda n: f'"{"true" * (n // 4)}"',
}


@pytest.mark.parametrize("name", ["session_id", "location_lat", "event_time", "unknown"])
@pytest.mark.parametrize("shape", _ADVERSE)
def test_a_long_value_is_read_or_refused_at_once(shape: str, name: str) -> None:
    """Scenario: 250 kB of what makes a careless reader look at every digit again for every digit (20 kB took 10 s).
    Outcome: an answer within two seconds of CPU, also beside a cut emoji, which sends the line through another reader."""
    value = _ADVERSE[shape](_LENGTH)
    for city in ("", ', "region": "\\ud83d"'):
        line = f'{{"event_time": "2026-02-02 10:00:00.000000"{city}, "{name}": {value}}}'.encode()
        began = time.process_time()
        LineParser("10001", date(2026, 2, 2), 1 << 30).parse(line)
        assert time.process_time() - began < 2
