"""Trace files whose text is not as it should be: mended where one reading is possible, else refused with the byte."""

import gzip
import json
import random
import re

import pytest
from trace_files import copy, kernel, text, write

from utils.trace import Trace, TraceError, TraceWarning
from utils.trace import jsontext as reading
from utils.trace.mending import mend


def load(folder, rows, **around):
    return Trace.load(write(folder, text(rows, **around)))


# --- T5: text that is mended ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "raw, name",
    [
        (rb"C:\Users\me\new.cu", "C:\\Users\\me\\new.cu"),
        (rb"op\lambda", "op\\lambda"),
        (b"tab\there", "tab\there"),
        (b"two\nlines\x00\x1b", "two\nlines\x00\x1b"),
        (b"dir\\", "dir\\"),
        (b"\\u12", "\\u12"),
        (b"caf\xe9", "caf?"),
        (rb"say \"x\" to \Q", 'say "x" to \\Q'),
        (rb"\ud800 alone", "\ufffd alone"),
    ],
)
def test_a_name_that_is_not_json_is_mended(tmp_path, raw, name):
    data = text([kernel("1.0"), kernel("2.0", name="NAME"), kernel("3.0")]).encode().replace(b"NAME", raw)
    with pytest.warns(
        TraceWarning, match=r"mended 1 pieces of text that are not valid JSON, the first at byte [0-9]"
    ):
        trace = Trace.load(write(tmp_path, data))
    assert trace.columns["name"].tolist() == ["gemm", name, "gemm"]


@pytest.mark.parametrize("word", ["NaN", "nan", "-nan", "Infinity", "-inf", "-nan(ind)", "inf"])
def test_a_word_for_no_number_is_no_value(tmp_path, word):
    data = text([copy("1.0", speed=77)]).replace("77", word)
    with pytest.warns(TraceWarning, match="mended 1 piece"):
        assert Trace.load(write(tmp_path, data)).busy_us("h2d") == 1.0


def test_a_windows_path_behind_the_events_is_mended(tmp_path):
    with pytest.warns(TraceWarning, match="mended 1 piece"):
        trace = load(tmp_path, [kernel("1.0")], tail=', "traceName": "C:\\Users\\me\\new\\"')
    assert len(trace) == 1


def test_a_comma_too_many_is_left_out(tmp_path):
    with pytest.warns(TraceWarning, match="mended 1 piece"):
        assert len(Trace.load(write(tmp_path, text([kernel("1.0")]).replace("\n  ]", ",\n  ]")))) == 1


def test_valid_text_is_never_touched():
    tricky = [
        r"C:\temp",
        'a", "b": 1}',
        "\\",
        '\\\\"',
        "nan",
        ", ]",
        '"ts": 1',
        "\\u0041",
        "],[",
        '{"x": [1, 2,]}',
        "\u00e9\U0001f600",
    ]
    for ascii_only in (True, False):
        data = json.dumps(
            [{"name": name, "args": {name: [name, {}]}} for name in tricky], ensure_ascii=ascii_only
        ).encode()
        fixed, edits = mend(data)
        assert fixed.text == data and edits == []


@pytest.mark.parametrize("form", ["utf-8-sig", "utf-16", "utf-16-le", "utf-16-be"])
def test_a_byte_order_mark_tells_the_encoding(tmp_path, form):
    mark = {"utf-16-le": "\ufeff", "utf-16-be": "\ufeff"}.get(form, "")
    trace = Trace.load(write(tmp_path, (mark + text([kernel("1.0", name="é")])).encode(form)))
    assert trace.columns["name"].tolist() == ["é"]


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data.replace("\n", "\r\n"),
        lambda data: data.replace("\n", "").replace(" ", ""),
        lambda data: data[data.index("[") : data.rindex("]") + 1],
        lambda data: json.dumps(json.loads(data), indent=4),
        lambda data: data.replace('"traceEvents"', '"stackFrames": {"1": [{}, {}, "]"]}, "traceEvents"'),
    ],
)
def test_layout_does_not_matter(tmp_path, change):
    rows = [kernel(f"{at}.125", "0.5") for at in range(5)]
    assert Trace.load(write(tmp_path, change(text(rows)))) == load(tmp_path, rows)


# --- gzip -------------------------------------------------------------------------------------------------------------


def test_the_content_decides_whether_it_is_gzip(tmp_path):
    data = text([kernel("1.0"), kernel("2.0")]).encode()
    plain = Trace.load(write(tmp_path, data))
    two = gzip.compress(data[:100]) + gzip.compress(data[100:])
    for name, content in (
        ("a.json.gz", gzip.compress(data)),
        ("b.json", gzip.compress(data)),
        ("c.json.gz", data),
        ("d.json.gz", two),
        ("e.json.gz", two + bytes(512)),
    ):
        assert Trace.load(write(tmp_path, content, name)) == plain


# --- files that are refused -------------------------------------------------------------------------------------------

GOOD = text([kernel("1.0"), kernel("2.0", name="a b")]).encode()


@pytest.mark.parametrize(
    "content, message",
    [
        (b"", r"t.json: byte 0: the file is empty"),
        (b" \n\t", r"t.json: byte 0: there is no text"),
        (gzip.compress(b"", mtime=0), r"t.json: byte 0 of the unpacked text: there is no text"),
        (gzip.compress(GOOD, mtime=0)[:-20], r"t.json: byte \d+: the gzip data breaks off"),
        (gzip.compress(GOOD, mtime=0)[:5], r"t.json: byte 5: the gzip data breaks off"),
        (gzip.compress(GOOD, mtime=0)[:-8] + bytes(8), r"t.json: near byte 0: the gzip data is damaged"),
        (gzip.compress(GOOD, mtime=0) + b"rest", r"t.json: near byte \d+: the gzip data is damaged"),
        (gzip.compress(GOOD[:-40], mtime=0), r"byte \d+ of the unpacked text: the file breaks off here"),
        (b"hello", r"t.json: byte 0: this is not a trace: it starts with 'hello'"),
        (b"\x89PNG\r\n\x1a\n", r"t.json: byte 0: this is not a trace"),
        (b"42", r"this is not a trace"),
        (b"null", r"this is not a trace"),
        (b'{"model": 1, "layers": []}', r"byte 0: this is not a trace: no list of traceEvents, only model, layers"),
        (b"{}", r"no list of traceEvents, only nothing"),
        (b'{"traceEvents": {"a": 1}}', r"no list of traceEvents, only traceEvents"),
        (b'{"traceEvents": null}', r"no list of traceEvents"),
        (b'{"traceEvents": [], "traceEvents": []}', r"byte 35: a second list of traceEvents"),
        (b'{"traceEvents": [1, 2]}', r"byte 17: an event of the wrong shape: 1"),
        (b'{"traceEvents": [{"ph": "X"}, "x"]}', r"byte 30: an event of the wrong shape: x"),
        (b'{"traceEvents": []} {', r"byte 20: the trace ends here, but '{' follows"),
        (b'{"traceEvents": [{}}', r"byte 19: the list of events must end with \]"),
        (b'{"traceEvents": [{} {}]}', r"byte 20: "),
        (b'{"traceEvents": [{"a": tru}]}', r"byte 2\d: not valid JSON"),
        (b"{traceEvents: []}", r"byte 1: "),
        (b'{1: [], "traceEvents": []}', r"byte 1: a key in quotes"),
        (b'{"a" 1}', r"byte 5: : was expected"),
        (text([kernel("null")]).encode(), r"byte \d+: the event 'gemm' has ts None: not a time"),
        (text([kernel('"soon"')]).encode(), r"has ts 'soon': not a time"),
        (text([kernel("1.0", '"long"')]).encode(), r"has dur 'long': not a time"),
        (text([kernel("1e999999999")]).encode(), r"not a time|not valid JSON"),
        (text([kernel('"1e999999999"')]).encode(), r"has ts '1e999999999': not a time"),
        (text([kernel("1790857026000000123456")]).encode(), r"not a time"),
        (text([kernel("[1]")]).encode(), r"has ts \[1\]: not a time"),
        (text(['{"ph": "X", "cat": "kernel", "name": "k", "dur": 1}']).encode(), r"the event 'k' has ts None"),
        (
            text([kernel("1.0"), '{"ph": "X", "cat": "kernel", "ts": 1, "dur": 1, "args": [1]}']).encode(),
            r"wrong shape",
        ),
        (text(['{"ph": "X", "cat": ["kernel"], "ts": 1, "dur": 1}']).encode(), r"wrong shape"),
        (b"\xff\xfe" + GOOD.decode().encode("utf-16-le")[:-21], r"UTF-16 text that breaks off"),
        (b"\xff\xfe" + GOOD.decode().encode("utf-16-le")[:-20], r"the text as UTF-8: the file breaks off here"),
    ],
)
def test_a_file_that_is_no_whole_trace_is_refused(tmp_path, content, message):
    with pytest.raises(TraceError, match=message) as refused:
        Trace.load(write(tmp_path, content))
    assert "t.json" in str(refused.value) and "\n" not in str(refused.value)


def test_a_trace_is_never_half_read(tmp_path):
    """Cut anywhere, the file is refused, and the byte that is named is where it ends."""
    for cut in range(1, len(GOOD.rstrip())):
        with pytest.raises(TraceError) as refused:
            Trace.load(write(tmp_path, GOOD[:cut]))
        assert f"byte {cut:,}:" in str(refused.value) or f"byte {len(GOOD[:cut].rstrip()):,}:" in str(
            refused.value
        ), cut


def test_the_byte_of_an_event_is_where_it_stands(tmp_path):
    data = "\ufeff" + text([kernel("1.0", name="é\\"), kernel("2.0"), kernel('"?"', name="here")])
    with pytest.raises(TraceError) as refused:
        Trace.load(write(tmp_path, data))
    named = int(re.search(r"byte ([\d,]+):", str(refused.value))[1].replace(",", ""))
    assert data.encode()[named:].startswith(b'{\n    "ph": "X", "cat": "kernel", "name": "here"')


def test_a_broken_byte_behind_mended_text_is_named_where_it_stands(tmp_path):
    data = text([kernel("1.0", name="PATH"), kernel("2.0", name="PATH"), kernel("3.0")]).replace(
        "PATH", r"C:\x\y\z"
    )
    data = data.replace('"ts": 3.0', '"ts": 3.0.0')
    with pytest.raises(TraceError) as refused:
        Trace.load(write(tmp_path, data))
    named = int(re.search(r"byte ([\d,]+):", str(refused.value))[1].replace(",", ""))
    assert abs(named - data.index("3.0.0")) <= 3


def test_a_missing_file_and_a_folder_say_so(tmp_path):
    with pytest.raises(FileNotFoundError):
        Trace.load(tmp_path / "none.json")
    with pytest.raises(TraceError, match="this is a directory"):
        Trace.load(tmp_path)


# --- chunks -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [70, 200, 1000, 5000])
def test_where_chunks_are_cut_does_not_matter(tmp_path, monkeypatch, size):
    draw = random.Random(size)
    names = ["plain", 'cut }, { "ph": "X" here', "] }", 'a\\", "b', "[{", "}, {"]
    rows = [
        kernel(
            f"17908570260{at:05d}.{at:03d}",
            "0.5",
            name=draw.choice(names),
            nested=[{"a": {}}, {"b": []}, draw.choice(names)],
        )
        for at in range(60)
    ]
    path = write(tmp_path, text(rows, tail=', "deviceProperties": [{"id": 0}, {"id": 1}]'))
    whole = Trace.load(path)
    monkeypatch.setattr(reading, "SCAN_BYTES", 64)
    monkeypatch.setattr(reading, "CHUNK_BYTES", size)
    again = Trace.load(path)
    assert again == whole and len(whole) == 60 and whole.busy_us("kernel") == 30.0
    assert again.meta == {"deviceProperties": [{"id": 0}, {"id": 1}]}


def test_a_fault_in_a_later_chunk_is_mended_or_refused_all_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "SCAN_BYTES", 64)
    monkeypatch.setattr(reading, "CHUNK_BYTES", 500)
    data = text([kernel(f"{2 * at}.0", name=f"n{at}") for at in range(40)])
    with pytest.warns(TraceWarning, match=rf"mended 1 .* byte {data.index('n30') - 1:,}$"):
        assert Trace.load(write(tmp_path, data.replace('"n30"', '"n\\30"'))).columns["name"][30] == "n\\30"
    with pytest.raises(TraceError, match=rf"byte {data.index('60.0'):,}: not valid JSON"):
        Trace.load(write(tmp_path, data.replace('"ts": 60.0', '"ts": ?')))


# --- progress ---------------------------------------------------------------------------------------------------------


def test_progress_is_shown_only_past_a_second_and_only_where_somebody_looks(tmp_path, capsys, monkeypatch):
    path = write(tmp_path, GOOD)
    for progress in (None, True, False):
        Trace.load(path, progress=progress)
        assert capsys.readouterr() == ("", "")
    monkeypatch.setattr("utils.trace.progress.DELAY_S", 0.0)
    Trace.load(path)
    assert capsys.readouterr() == ("", "")
    Trace.load(path, progress=True)
    assert "reading trace" in capsys.readouterr().err
