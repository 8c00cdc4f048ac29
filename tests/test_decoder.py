"""utils.decoder on the CPU: every mix of rows gives what a plain decoder gives for each request alone."""

import random

import pytest
import torch
from decoder_reference import VARIANTS, reference
from decoder_rows import CELLS, SLOTS, columns, decoder, fill, mixes, sequences
from hypothesis import given, settings
from hypothesis import strategies as st

from utils.decoder import LLAMA_3_8B, TINY, Config, weights


def play(model, requests, rng):
    """Scores of each request, (tokens, words), from random steps; a step whose slots all differ is made either way."""
    scores = [[None] * len(tokens) for tokens in requests]
    for rows in mixes(rng, requests):
        used = [slot for _, slot, position in rows if position >= 0]
        one_each = len(set(used)) == len(used) and len(rows) <= model.slots and rng.random() < 0.7
        upto = rng.choice([None, max(position for _, _, position in rows) + 1])
        for (_, slot, position), found in zip(rows, model.logits(*columns(rows), upto, one_each), strict=True):
            if position >= 0:
                scores[slot][position] = found
    return [torch.stack(found) for found in scores]


@pytest.mark.parametrize("name", VARIANTS)
@given(seed=st.integers(0, 10**6))
@settings(max_examples=25)
def test_any_mix_of_rows_gives_what_each_request_gets_alone(name, seed):
    model, requests = decoder(VARIANTS[name], seed=seed), sequences(seed)
    for found, tokens in zip(play(model, requests, random.Random(seed)), requests, strict=True):
        torch.testing.assert_close(found.double(), reference(model, torch.tensor(tokens)), atol=2e-6, rtol=0)


@pytest.mark.parametrize("one_each", [False, True])
def test_a_slot_is_used_again_without_being_cleared(one_each):
    model, first, second = decoder(), sequences(1), sequences(2)
    fill(model, first)
    for tokens, slot in zip(second, [3, 1, 0, 2, 4], strict=True):
        for n, token in enumerate(tokens):
            found = model.logits(*columns([(token, slot, n)]), one_each=one_each)
        torch.testing.assert_close(found[0].double(), reference(model, torch.tensor(tokens))[-1], atol=2e-6, rtol=0)


@pytest.mark.parametrize("one_each", [False, True])
def test_what_other_slots_hold_does_not_matter(one_each):
    """Not even NaN; and of the slot's own cells beyond the row only what is finite, at weight 0."""
    model, tokens = decoder(), sequences(3)[0][:20]
    expected = fill(model, [tokens])[0][-1]
    for part in (model.cache.keys, model.cache.values):
        part[:, 1:] = torch.nan
        part[:, 0, :, len(tokens):] = 1e6
    row = columns([(tokens[-1], 0, len(tokens) - 1)])
    assert torch.equal(model.logits(*row, one_each=one_each)[0].argmax(), expected.argmax())
    torch.testing.assert_close(model.logits(*row, one_each=one_each)[0], expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("one_each", [False, True])
@pytest.mark.parametrize("cells", [CELLS, 48])              # 48: as many as memory is laid out in
def test_padding_and_slots_without_a_row_stay_as_they_are(one_each, cells):
    model, requests = decoder(cells=cells), [*sequences(4, SLOTS - 1, 40), list(range(cells))]
    fill(model, requests)
    before = [part[:, :, :, :cells].clone() for part in (model.cache.keys, model.cache.values)]
    model.logits(*columns([(7, 4, -1), (9, 2, -1), (1, 2, len(requests[2]) - 1)]), one_each=one_each)
    for part, kept in zip((model.cache.keys, model.cache.values), before, strict=True):
        changed = (part[:, :, :, :cells] != kept).any(-1).nonzero()[:, [1, 3]].unique(dim=0).tolist()
        assert changed == [[2, len(requests[2]) - 1]]


def test_one_each_gives_each_row_its_own_in_any_order():
    model, requests = decoder(), sequences(5)
    expected = [scores[-1] for scores in fill(model, requests)]
    for order in ([4, 0, 3, 1, 2], [2], [3, 0]):
        rows = columns([(requests[slot][-1], slot, len(requests[slot]) - 1) for slot in order])
        torch.testing.assert_close(model.logits(*rows, one_each=True), torch.stack([expected[n] for n in order]),
                                   atol=1e-6, rtol=0)
        assert torch.equal(model.decode(*rows), model(*rows))
        assert model.decode(*rows).tolist() == [int(expected[n].argmax()) for n in order]


def test_the_rows_of_a_step_see_each_other_whatever_their_order():
    model, tokens = decoder(), sequences(6)[0][:12]
    expected = reference(model, torch.tensor(tokens))
    rows = [(token, 2, n) for n, token in enumerate(tokens)]
    torch.testing.assert_close(model.logits(*columns(rows[::-1])).double(), expected.flip(0), atol=2e-6, rtol=0)


def test_upto_reads_no_more_than_it_says():
    """Rounded up to 16: cells from there on may be anything."""
    model, requests = decoder(), [tokens[:16] for tokens in sequences(7)]
    expected = torch.stack([scores[-1] for scores in fill(model, requests)])
    for part in (model.cache.keys, model.cache.values):
        part[:, :, :, 16:] = torch.nan
    rows = columns([(tokens[-1], slot, len(tokens) - 1) for slot, tokens in enumerate(requests)])
    for one_each in (False, True):
        torch.testing.assert_close(model.logits(*rows, 16, one_each), expected, atol=1e-6, rtol=0)
        assert model.logits(*rows, None, one_each).isnan().all(), "all cells are read otherwise"


@pytest.mark.parametrize("layers", [2, 24])
def test_bfloat16_stays_near_and_its_numbers_near_one(layers):
    config = Config(words=300, width=128, layers=layers, heads=4, kv_heads=2, dim=32, hidden=256)
    model, requests = decoder(config, torch.bfloat16), sequences(8, words=300)
    for found, tokens in zip(fill(model, requests), requests, strict=True):
        expected = reference(model, torch.tensor(tokens))
        assert found.dtype == torch.float32 and 0.5 < expected.std() < 2
        assert (found - expected).std() < 0.03


def test_the_seed_decides_the_weights():
    tokens = columns([(n, 0, n) for n in range(8)])
    one, same, other = (decoder(seed=seed).logits(*tokens) for seed in (1, 1, 2))
    assert torch.equal(one, same) and not torch.allclose(one, other, atol=0.1)


def test_the_shape_of_llama_3_8b():
    """8.03e9 parameters (its model card); a decode step reads all but the embedding, and 128 KiB for each cell."""
    made = weights.empty(LLAMA_3_8B, torch.bfloat16, "meta")
    assert made.nbytes == 2 * 8_030_261_248 and made.step_nbytes == made.nbytes - 2 * 128_256 * 4096
    assert LLAMA_3_8B.row_numbers * 2 == 128 * 1024


def test_bytes_of_a_step():
    model = decoder(dtype=torch.bfloat16)
    assert model.step_nbytes() - model.step_nbytes(20) == SLOTS * (CELLS - 20) * TINY.row_numbers * 2
    assert model.step_nbytes(1) == model.weights.step_nbytes + SLOTS * TINY.row_numbers * 2


@pytest.mark.parametrize("changes, said", [
    ({"heads": 3}, "3 heads cannot share 2 kv_heads"), ({"dim": 15}, "must be even"), ({"layers": 0}, "layers must be"),
    ({"width": 64.0}, "whole number from 1 up, not 64.0"),
])
def test_sizes_that_do_not_fit(changes, said):
    with pytest.raises(ValueError, match=said):
        Config(**(vars(TINY) | changes))


def test_calls_that_cannot_work():
    model, (token, slot, position) = decoder(), columns([(1, 0, 0)])
    cells = model.cache.keys.clone()
    with pytest.raises(ValueError, match="at least one of each"):
        decoder(slots=0)
    with pytest.raises(ValueError, match=r"upto 51: a slot has 50 cells"):
        model(token, slot, position, 51)
    with pytest.raises(ValueError, match=r"int64 of one length"):
        model(token.int(), slot, position)
    with pytest.raises(ValueError, match=r"int64 of one length"):
        model.decode(token, slot.repeat(2), position)
    with pytest.raises(ValueError, match=r"int64 of one length, from 1 up"):
        model(token[:0], slot[:0], position[:0])
    with pytest.raises(ValueError, match=r"6 rows cannot be of different slots: there are 5"):
        model.decode(token.repeat(6), slot.repeat(6), position.repeat(6))
    assert torch.equal(model.cache.keys, cells)
