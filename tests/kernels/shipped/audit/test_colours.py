"""Colour refinement against graphs whose equality is known: renumbered, one edge moved, chains of any length."""

import random

import pytest

from fa4verify.kernels.shipped.audit.colours import behind, digest, refined


def told(labels, edges):
    return digest(refined(labels, edges, range(len(labels))))


@pytest.mark.parametrize("seed", range(20))
def test_numbers_do_not_matter_and_edges_do(seed):
    """A random acyclic graph in which all labels differ: there no two vertices have equal histories."""
    rng = random.Random(seed)
    size = rng.randrange(2, 40)
    labels = [f"vertex {at}" for at in range(size)]
    edges = [(at, operand, rng.randrange(at)) for at in range(1, size) for operand in range(rng.randrange(4))]
    order = rng.sample(range(size), size)
    moved = [(order[reader], operand, order[source]) for reader, operand, source in edges]
    renamed = [labels[order.index(at)] for at in range(size)]
    assert told(labels, edges) == told(renamed, rng.sample(moved, len(moved)))
    for at, (reader, operand, source) in enumerate(edges):
        others = [*edges[:at], *edges[at + 1 :]]
        assert told(labels, others) != told(labels, edges)
        assert told(labels, [*others, (reader, operand + 9, source)]) != told(labels, edges)
        if size > 2:
            other = rng.choice([one for one in range(size) if one != source])
            assert told(labels, [*others, (reader, operand, other)]) != told(labels, edges)


@pytest.mark.parametrize("length", [1, 2, 100, 1000])
def test_a_difference_is_carried_to_the_end_of_a_chain(length):
    """Two chains of equal labels; what tells their ends apart is where they begin, however far that is."""
    labels = ["begin", "another", *["link"] * (2 * length)]
    edges = [(at, 0, at - 2) for at in range(2, len(labels))]
    colours = refined(labels, edges, range(len(labels)))
    assert colours[-1] != colours[-2]
    labels[1] = "begin"
    colours = refined(labels, edges, range(len(labels)))
    assert colours[-1] == colours[-2]


def test_loops_end_and_equal_histories_are_one():
    """A ring of three and one of six cannot be told apart by walking round; a ring with a mark can."""
    ring = [(at, 0, (at + 1) % 3) for at in range(3)]
    long = [(at, 0, (at + 1) % 6) for at in range(6)]
    assert {*refined(["x"] * 3, ring, range(3))} == {*refined(["x"] * 6, long, range(6))}
    assert len({*refined(["mark", *["x"] * 5], long, range(6))}) == 6


def test_behind_is_all_that_a_vertex_is_made_of():
    assert behind([3], [(3, 0, 1), (1, 0, 0), (0, 0, 3), (4, 0, 2)]) == {0, 1, 3}


def test_the_digest_is_the_same_everywhere():
    """Else a contract would hold on one machine; from the definition, in exact integers."""

    def mixed(word):
        word = (word + 0x9E3779B97F4A7C15) % 2**64
        word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        word = (word ^ word >> 27) * 0x94D049BB133111EB % 2**64
        return word ^ word >> 31

    import hashlib

    own = [int.from_bytes(hashlib.sha256(label.encode()).digest()[:8], "little") for label in ("a", "b")]
    colours = own
    for _ in range(1):  # two colours from the start: one round finds that there are no more
        colours = [mixed(own[0]), mixed((own[1] + mixed(colours[0] ^ mixed(5))) % 2**64)]
    assert refined(["a", "b"], [(1, 5, 0)], (0, 1)) == colours
