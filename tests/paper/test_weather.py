"""The weather benchmark: its table, and what it refuses."""

import pytest

from paper.weather import measure_table, weather_table


def test_the_table_has_measured_and_published_rows():
    def row(mse):
        return {"mse": mse, "mae": 0.2, "parameters": 1000, "cpu_seconds": 3.0}

    published = {"other": {"look_back": 336, "mse": [0.1, 0.2, 0.3, 0.4]}}
    rows = {"strict": {h: row(0.15) for h in ("96", "192", "336", "720")}, "one": {"96": row(0.3)}}
    text = weather_table({"look_back": 96, "rows": rows, "published_mse": published}).splitlines()
    assert text[2].startswith("| strict | 96 | 0.150 / 0.200 | ") and "| 0.150 | 1,000 |" in text[2]
    assert text[3].startswith("| one | 96 | 0.300 / 0.200 | – | – | – | – |")
    assert text[4].startswith("| other, published | 336 | 0.100 | 0.200 | 0.300 | 0.400 | 0.250 |")


def test_the_weather_command_refuses_what_it_does_not_know(tmp_path):
    for arguments, said in (
        ({"horizons": "soon"}, "expected horizons as whole numbers"),
        ({"rows": "stict"}, "there is no row 'stict'. Did you mean strict?"),
    ):
        with pytest.raises(ValueError, match=said):
            measure_table(out=tmp_path, **arguments)


def test_another_look_back_has_files_of_its_own(data_root, tmp_path):
    result = measure_table("96", "last value", out=tmp_path, root=data_root, look_back=48)
    row = result["rows"]["last value"]["96"]
    assert result["look_back"] == row["look_back"] == 48 and row["test_windows"] == 10_444
    names = {path.name for path in tmp_path.rglob("*") if path.is_file()}
    assert names == {
        "weather-from-48.json", "error-by-step-from-48.png", "last-value-96-from-48.json",
    }  # fmt: skip
    assert "| last value | 48 |" in weather_table(result)
