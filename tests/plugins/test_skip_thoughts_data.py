"""Skip-thoughts' data: sentences and words, the vocabulary, books, homogeneous batches, test sets, word vectors, bad files."""

import gzip
from pathlib import Path

import numpy as np
import pytest

from duoln.data.text import read_books
from duoln.errors import DataError, DataFormatError, DataMissingError, UsageError
from duoln.plugins.skip_thoughts import data, made, sets, vectors
from duoln.plugins.skip_thoughts.corpus import END, FIRST, UNKNOWN, make_corpus, split_sentences, split_words
from duoln.plugins.skip_thoughts.data import HomogeneousBatches, Triplets, encoder_length
from duoln.plugins.skip_thoughts.task import SkipThoughtsTask
from duoln.tasks import make_config
from duoln.testing import check_error

TASK = SkipThoughtsTask()


# Text ---------------------------------------------------------------------------------------------------

@pytest.mark.parametrize(("text", "expected"), [
    ('"Why did you come?" she said. "I will not."', ['"Why did you come?" she said.', '"I will not."']),
    ("Mr. Brown met Dr. J. Watson. It was late.", ["Mr. Brown met Dr. J. Watson.", "It was late."]),
    ("It was I. He left... and came back.", ["It was I.", "He left... and came back."]),
    ("“Why?” she said. “Go.” He left.", ["“Why?” she said.", "“Go.”", "He left."]), ("one line without an end", ["one line without an end"]), ("", []), ("What?! No!", ["What?!", "No!"]),
    ("It is!?! A b.", ["It is!?!", "A b."]), ("a.b. C", ["a.b.", "C"]), ("Oh.'. B", ["Oh.'.", "B"]), ("(So.) \"Go!\" Now", ["(So.)", '"Go!"', "Now"]),
    ("... A", ["...", "A"]), ("!" * 300_000 + "x", ["!" * 300_000 + "x"]), ("." + " " * 300_000 + "x", ["." + " " * 300_000 + "x"])],
    ids=range(14))
def test_sentences(text, expected):
    assert split_sentences(text) == expected


@pytest.mark.parametrize(("text", "expected"), [
    ("It's so-so; I don't, can't.", "It 's so-so ; I do n't , ca n't ."), ("it 's n't 've", "it 's n't 've"),
    ("does n 't show 1/2x (etc .)", "does n 't show 1/2x ( etc . )"), ("mp3s 1,000 3.5", "mp3s 1,000 3.5"),
    ("wait--no... ``hi''", "wait -- no ... `` hi ''"), ("café naïve", "café naïve"), ("  ", ""),
    ("He met Mr. O'Brien at five o'clock.", "He met Mr. O'Brien at five o'clock ."), ("The U.S. team, e.g., won.", "The U.S. team , e.g. , won ."),
    ("J.P. Morgan & Co. of the U.S.", "J.P. Morgan & Co. of the U.S ."), ('He said "No." (Or so.) And', 'He said " No . " ( Or so . ) And'),
    ("They saw it -LRB- twice -RRB- .", "They saw it -LRB- twice -RRB- ."), ("x-lrb-y", "x-lrb-y"), ("U.S.-based AT&T's 1,000-mile and/or", "U.S.-based AT&T 's 1,000-mile and/or"),
    ("don’t, he’d ’em '80s", "do n't , he 'd 'em '80s"), ("the boys' dogs", "the boys ' dogs"), ("at 10:30 for $40.50, 10%", "at 10:30 for $ 40.50 , 10 %"),
    ("rock'n'roll y'all I'd've", "rock'n'roll y'all I 'd 've"), ("word,word a;b 1,b", "word , word a ; b 1 , b")])
def test_words(text, expected):
    assert split_words(text) == expected.split()
    assert split_words(expected) == expected.split()  # split text does not change


PIECES = ["a", "n", "t", "n't", "'s", "'", "’", ".", " ", ",", "-", "1", "lrb", "em", "/", '"', "(", ")", ":", "``", "é"]


def test_words_of_words_are_the_same_words_and_nothing_is_lost():
    rng = np.random.default_rng(0)
    for _ in range(5000):
        text = "".join(rng.choice(PIECES, rng.integers(1, 9)))
        words = split_words(text)
        assert split_words(" ".join(words)) == words and "".join(words) == "".join(text.split()).replace("’", "'"), text


def test_books_and_the_vocabulary_by_frequency(tmp_path):
    path = tmp_path / "two.txt"
    path.write_text("### One | A\nThe cat sat. A cat ran!\n\n\n### Two\nthe end\n")
    books = [list(book) for book in read_books(path, 1 << 20)]
    assert books == [["The cat sat. A cat ran!"], ["the end"]]
    corpus = make_corpus("two", books, lower_case=True)
    assert corpus.words == ["<end>", "<unknown>", "the", "cat", "sat", ".", "a", "ran", "!", "end"]
    assert corpus.numbers.tolist() == [2, 3, 4, 5, 6, 3, 7, 8, 2, 9]
    assert corpus.starts.tolist() == [0, 4, 8, 10] and corpus.books.tolist() == [0, 2, 3]
    assert "The" in make_corpus("two", books, lower_case=False).words
    given = make_corpus("two", books, True, ["cat", "the"])
    assert given.numbers.tolist() == [3, 2, 1, 1, 1, 2, 1, 1, 3, 1]
    check_error(DataError, lambda: make_corpus("none", [["  "]], True), "none", "at least one sentence")


def _book(count, last):
    """Sentences of one text, of which the last ones are others."""
    return [f"the sea was deep {k % 3}." for k in range(count)] + last


LAST = ["the quagga sang.", "a quagga sank.", "the quagga slept.", "no quagga drifted.", "that quagga waved."]


def test_words_of_validation_are_not_counted():
    """Nor do they decide which words the table has: otherwise the validation would know what training does not."""
    books = [_book(95, LAST), _book(5, ["a wombat.", "the wombat.", "wombat wombat wombat wombat was deep."])]
    corpus = make_corpus("two", books, True, valid_share=0.05)
    assert corpus.words[FIRST:] == ["the", "sea", "was", "deep", ".", "0", "1", "2"]
    train, valid = data.parts(corpus, None, 12, 0.05)
    assert len(train.middles) == 93 + 3 and len(valid.middles) == 3 + 1
    used = {number for middle in valid.middles for number in corpus.numbers[corpus.starts[middle - 1]:corpus.starts[middle + 2]]}
    assert {corpus.words[number] for number in used} == {"<unknown>", "the", "was", "deep", "."}
    assert "quagga" in make_corpus("two", books, True).words  # where other books are held out, all of these are counted


def test_rare_words_are_unknown():
    _, corpus, _, _ = data.load("made", None, 10, True, 0.02)
    assert len(corpus.words) == 10 and corpus.numbers.max() == 9 and (corpus.numbers == UNKNOWN).any()
    check_error(UsageError, lambda: data.load("made", None, 2, True, 0.02), "at least 3", "found 2")


# Batches ------------------------------------------------------------------------------------------------

def _triplets(lengths, limit, books=None):
    text = [" ".join(f"w{k}x{i}" for i in range(n)) for k, n in enumerate(lengths)]
    corpus = make_corpus("made", [text], False)
    if books:
        corpus = corpus._replace(books=np.array(books))
    return Triplets(corpus, np.arange(1, len(lengths) - 1), limit)


def _sentence(triplets, k):
    c = triplets.corpus
    return c.numbers[c.starts[k]:c.starts[k + 1]].tolist()


def test_a_batch_is_three_sentences_with_their_ends():
    triplets = _triplets([2, 3, 1, 3], 5)
    batch = triplets.batch(np.array([0, 1]), 3)  # the middles are sentences 1 and 2
    assert {k: a.shape for k, a in batch.items()} == {"words": (4, 3), "mask": (4, 3), "given": (2, 4, 3), "targets": (2, 5, 3)}
    for row, middle in enumerate((1, 2)):
        words = [*_sentence(triplets, middle), END]
        assert batch["words"][:len(words), row].tolist() == words and batch["mask"][:, row].sum() == len(words)
        for k, neighbour in enumerate((middle - 1, middle + 1)):
            target = [*_sentence(triplets, neighbour), END]
            assert batch["targets"][k, :, row].tolist() == target + [-1] * (5 - len(target))
            assert batch["given"][k, :len(target) - 1, row].tolist() == target[:-1]
    assert not batch["mask"][:, 2].any() and (batch["targets"][:, :, 2] == -1).all()


@pytest.mark.parametrize("filtering", ["batch", "corpus"])
def test_an_epoch_has_every_short_triplet_once_in_batches_of_one_length(filtering):
    rng = np.random.default_rng(0)
    triplets = _triplets(rng.integers(1, 12, 400), 9)
    lengths = triplets.corpus.lengths
    batches = HomogeneousBatches(triplets, 16, 0, filtering)
    expected = sorted(m for m in triplets.middles if (lengths[m - 1:m + 2] < 9).all())
    for epoch in range(2):
        plan = batches._plan(epoch)
        assert sorted(triplets.middles[np.concatenate(plan)]) == expected
        for chosen in plan:
            assert len(set(lengths[triplets.middles[chosen]])) == 1 and 1 <= len(chosen) <= 16
    sizes = [len(chosen) for chosen in batches._plan(0)]
    full = sum(np.array([(lengths[m - 1:m + 2] < 9).all() and lengths[m] == n for m in triplets.middles]).sum() // 16 for n in range(1, 9))
    assert (sizes.count(16) == full) == (filtering == "corpus")  # the code's batches lose some rows
    firsts = [lengths[triplets.middles[chosen[0]]] for chosen in batches._plan(0)[:len(batches._by_length)]]
    assert sorted(firsts) == list(range(1, 9)) != firsts  # lengths take turns, in random order


def test_a_batch_depends_on_the_step_alone():
    triplets = _triplets(np.random.default_rng(1).integers(1, 12, 200), 9)
    one, again = (HomogeneousBatches(triplets, 8, 3, "batch") for _ in range(2))
    steps = [0, 5, one.steps_per_epoch, 3 * one.steps_per_epoch + 1, 2]
    for step in steps:
        first, second = one(step), again(step)
        assert all(np.array_equal(first[k], second[k]) for k in first)
    assert not np.array_equal(one(0)["targets"], one(one._ends[0])["targets"])


def test_few_forms_and_no_sentence_of_another_book():
    assert len({encoder_length(n, 30) for n in range(2, 31)}) == 15 and encoder_length(30, 30) == 30
    for limit in (2, 7, 16, 31, 60):
        length_of = {n: encoder_length(n, limit) for n in range(1, limit + 1)}
        assert len(set(length_of.values())) <= 15 and all(n <= m <= limit for n, m in length_of.items())
    triplets = _triplets([1] * 20, 3, books=[0, 10, 20])
    train, valid = data.parts(triplets.corpus, None, 3, 0.3)
    assert train.middles.tolist() == [1, 2, 3, 4, 5, 11, 12, 13, 14, 15] and valid.middles.tolist() == [8, 18]
    check_error(UsageError, lambda: data.parts(triplets.corpus, None, 3, 1.5), "valid_share", "1.5")
    check_error(UsageError, lambda: HomogeneousBatches(_triplets([9] * 5, 3), 4, 0, "batch"), "below 3 words")


def test_unigram_counts_are_of_the_training_targets():
    triplets = _triplets([2, 9, 1, 1, 2, 1], 5)  # the second sentence is too long
    split = data.valid_split(triplets, triplets, 10, 2)
    expected = np.zeros(len(triplets.corpus.words), int)
    for middle in (3, 4):
        for neighbour in (middle - 1, middle + 1):
            for word in [*_sentence(triplets, neighbour), END]:
                expected[word] += 1
    np.testing.assert_array_equal(split["counts"], expected)
    assert (split["targets"] >= 0).sum() == expected.sum()


# Test sets ----------------------------------------------------------------------------------------------

HEAD = "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment\n"


def test_readers_of_the_sets(tmp_path):
    path = tmp_path / "a.all.gz"
    path.write_bytes(gzip.compress("0 one \x85 line\n1 caf\xe9\n".encode("latin-1")))
    assert sets.read_labelled(path) == [("one \x85 line", 0), ("café", 1)]
    path.write_bytes(b"0 a b\n1 \n")  # as CR has them
    assert sets.read_labelled(path) == [("a b", 0), ("", 1)]
    path = tmp_path / "sick.txt"
    path.write_bytes((HEAD + "1\tA dog\tA cat\t3.5\tNEUTRAL\n2\ta\tb\t5\tX\n").replace("\n", "\r\n").encode())
    assert sets.read_pairs(path) == [made.Pair("A dog", "A cat", 3.5), made.Pair("a", "b", 5.0)]


@pytest.mark.parametrize(("line", "words"), [
    ("3\tonly\tthree", ["line 3", "4", "found 3"]), ("3\ta\tb\t5.5\tX", ["line 3", "1 to 5", "'5.5'"]),
    ("3\ta\tb\t0.9\tX", ["line 3", "1 to 5"]), ("3\ta\tb\tnan\tX", ["line 3", "'nan'"]),
    ("3\ta\tb\thigh\tX", ["line 3", "'high'"]), ("3\t \tb\t3\tX", ["line 3", "two sentences", "empty"]), ("", ["line 3", "found 1"])])
def test_a_bad_pair_is_named_by_file_and_line(tmp_path, line, words):
    path = tmp_path / "SICK_train.txt"
    path.write_text(f"{HEAD}1\ta\tb\t3\tX\n{line}\n")
    check_error(DataFormatError, lambda: sets.read_pairs(path), "SICK_train.txt", *words)
    path.write_text("something else\n")
    check_error(DataFormatError, lambda: sets.read_pairs(path), "line 1", "relatedness_score", "something else")
    path.write_text(HEAD)
    check_error(DataFormatError, lambda: sets.read_pairs(path), "at least one pair")
    path.write_bytes(HEAD.encode() + b"1\tcaf\xe9\tb\t3\tX\n")
    check_error(DataFormatError, lambda: sets.read_pairs(path), "line 2", "utf-8", "byte 5")


@pytest.mark.parametrize(("content", "words"), [
    (b"0 a\n2 b\n", ["line 2", "0 or 1", "'2 b'"]), (b"0 a\n1\n", ["line 2", "a space", "'1'"]),
    (b"0 a\n\n1 b\n", ["line 2"]), (b"1 a\n1 b\n", ["both classes", "2 lines of class 1 only"]), (b"", ["none"]),
    ("0 a\n".encode("utf-16"), ["line 1", "latin-1", "zero byte"]), (gzip.compress(b"0 a\n1 b\n", mtime=0)[:-9], ["gzip"])])
def test_a_bad_sentence_is_named_by_file_and_line(tmp_path, content, words):
    path = tmp_path / "mr.all"
    path.write_bytes(content)
    check_error(DataFormatError, lambda: sets.read_labelled(path), "mr.all", *words)


def test_a_set_in_numbers():
    tests = sets.load(["sick", "mr"], True, True)
    number = {"the": 2}
    batch = sets.as_batch(tests[0], number)
    assert len(batch["words"]) == 2 * len(batch["answers"]) and set(batch["parts"]) == {0, 1, 2}
    for row, length, sentence in zip(batch["words"], batch["lengths"], tests[0].sentences, strict=True):
        assert length == len(sentence) + 1 and row[length - 1] == END and not row[length:].any()
        assert row[:length - 1].tolist() == [2 if word == "the" else UNKNOWN for word in sentence]
    batch = sets.as_batch(tests[1], number)
    assert batch["lengths"].tolist() == [len(s) for s in tests[1].sentences]  # no end here
    assert batch["answers"][0] == 1 and (np.diff(batch["answers"]) <= 0).all()  # class 1 first
    assert sets.coverage(tests[1], number) == pytest.approx(np.mean([w == "the" for s in tests[1].sentences for w in s]))


def test_a_missing_set_says_what_to_do(monkeypatch, tmp_path):
    monkeypatch.setenv("DUOLN_DATA", str(tmp_path))
    check_error(DataMissingError, lambda: sets.load(["mr"], False, True), "rt-polarity.all.gz", "judge=none")


def test_without_scikit_learn(monkeypatch):
    monkeypatch.setattr("duoln.plugins.skip_thoughts.judging.find_spec", lambda name: None)
    check_error(UsageError, lambda: TASK.data(make_config(TASK, "ln", "smoke")), "pip install", "judge=none")
    assert set(TASK.data(make_config(TASK, "ln", "smoke", {"judge": "none"})).evaluation) == {"valid"}


# Word vectors -------------------------------------------------------------------------------------------

def _binary(rows, width):
    return f"{len(rows)} {width}\n".encode() + b"".join(
        word.encode() + b" " + np.asarray(values, "<f4").tobytes() + b"\n" for word, values in rows)


ROWS = [("cat", [1, 2, 3]), ("New_York", [0, 0, 0]), ("dog", [4, 5, 6.5])]


@pytest.mark.parametrize(("name", "content"), [
    ("v.bin", _binary(ROWS, 3)), ("v.bin.gz", gzip.compress(_binary(ROWS, 3), mtime=0))])
def test_vectors_packed_or_not(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    vectors_of = vectors.read_vectors(tmp_path / name, ["cat", "dog", "cow", "New_York"])
    assert {k: v.tolist() for k, v in vectors_of.items()} == {"cat": [1, 2, 3], "dog": [4, 5, 6.5]}


@pytest.mark.parametrize(("content", "words"), [
    (b"3 99999999\n", ["1 to 4096"]), (b"1 3\ncat " + b"\0" * 11, ["3 numbers", "end of the file"]), (b"", ["two numbers"]),
    (b"9999999999 3\n", ["9999999999 words", "end of the file"]), (b"cat 1 2", ["two numbers"]), (b"1 3\n" + b"x" * 2000, ["longer"]),
    (_binary([("cat", [1, np.inf, 0])], 3), ["finite", "'cat'"])])
def test_bad_vectors(tmp_path, content, words):
    (tmp_path / "v.bin").write_bytes(content)
    check_error(DataFormatError, lambda: vectors.read_vectors(tmp_path / "v.bin", ["cat", "dog"]), "v.bin", *words)


@pytest.mark.long
def test_expansion_is_least_squares_with_an_intercept():
    rng = np.random.default_rng(0)
    known = ["<end>", "<unknown>", *(f"w{k}" for k in range(30)), "only here"]
    matrix, shift = rng.standard_normal((4, 6)), rng.standard_normal(6)
    others = {f"w{k}": rng.standard_normal(4).astype(np.float32) for k in range(40)}
    table = np.zeros((len(known), 6), np.float32)
    for k, word in enumerate(known[FIRST:-1], start=FIRST):
        table[k] = others[word] @ matrix + shift
    expansion = vectors.expand(known, table, others)
    assert expansion.fitted == 30 and expansion.words == [f"w{k}" for k in range(30, 40)]
    expected = np.stack([others[word] for word in expansion.words]) @ matrix + shift
    np.testing.assert_allclose(expansion.vectors, expected, atol=1e-4)
    # With noise there is no exact map: against scikit-learn's.
    from sklearn.linear_model import LinearRegression

    table += 0.3 * rng.standard_normal(table.shape).astype(np.float32)
    reference = LinearRegression().fit([others[w] for w in known[FIRST:-1]], table[FIRST:-1])
    np.testing.assert_allclose(vectors.expand(known, table, others).vectors,
                               reference.predict([others[w] for w in expansion.words]), atol=1e-4)
    check_error(DataError, lambda: vectors.expand(known[:5], table, others), "more than 4 words", "found 3")
    check_error(DataError, lambda: vectors.expand(known, table, {}), "found 0")


HELD_OUT = Path(data.PLACES["novels100"][1]).name


def _novel(name, sentences):
    return f"### {name} | A | 1900\n" + "".join(f"{name} says {word} now.\n" for word in sentences) + "\n"


def _write(root, name, text):
    (root / "books").mkdir(exist_ok=True)
    path = root / "books" / name
    path.write_bytes(gzip.compress(text.encode()))
    return path


def _words_of(triplets):
    c = triplets.corpus
    return [[c.words[k] for k in c.numbers[c.starts[m]:c.starts[m + 1]]] for m in triplets.middles]


@pytest.fixture
def novels100(tmp_path):
    _write(tmp_path, "novels100.txt.gz", _novel("One", "abcdef") + _novel("Two", "ghijkl"))
    _write(tmp_path, HELD_OUT, _novel("Three", "abcx"))
    return tmp_path


def test_the_largest_corpus_that_is_there(novels100):
    _write(novels100, "novels.txt.gz", _novel("Small", "ab"))

    def name(source):
        return data.load(source, None, 50, True, 0.02, novels100)[0].name

    assert name("auto") == name("novels100") == "novels100, 12 sentences" and name("novels") == "novels, 2 sentences"
    check_error(DataMissingError, lambda: name("bookcorpus"), "books/bookcorpus.txt.gz", "--set corpus=FILE")
    _write(novels100, "bookcorpus.txt.gz", _novel("All", "abc"))
    assert name("auto") == "bookcorpus, 3 sentences"


def test_held_out_books_are_for_validation_alone(novels100):
    dataset, corpus, held_out, _ = data.load("novels100", None, 50, True, 0.02, novels100)
    train, valid = data.parts(corpus, held_out, 9, 0.5)
    assert dataset.provenance == "substitute"
    assert _words_of(train) == [[*f"{book} says {letter} now .".split()] for book, letters in
                                (("one", "bcde"), ("two", "hijk")) for letter in letters]
    # Words that only held-out books have are unknown.
    assert _words_of(valid) == [["<unknown>", "says", letter, "now", "."] for letter in "bc"]
    assert held_out.words == corpus.words and (held_out.numbers == UNKNOWN).sum() == 5


def test_a_text_of_ones_own_has_no_held_out_books(novels100):
    path = _write(novels100, "mine.txt.gz", _novel("Mine", "abcdefghij"))
    for source, text in (("novels100", str(path)), ("made", None)):
        assert data.load(source, text, 50, True, 0.02, novels100).held_out is None


def test_held_out_books_that_are_missing_or_damaged(novels100):
    cfg = make_config(TASK, "ln", "smoke", {"source": "auto", "judge": "none", "batch_size": 2})
    assert TASK.data(cfg, novels100).dataset.name == "novels100, 12 sentences"
    path = novels100 / "books" / HELD_OUT
    path.write_bytes(path.read_bytes()[:-9])
    check_error(DataFormatError, lambda: TASK.data(cfg, novels100), HELD_OUT, "gzip")
    path.unlink()
    check_error(DataError, lambda: TASK.data(cfg, novels100), HELD_OUT, "missing")


def test_validation_has_triplets_of_every_book():
    lengths = np.tile([2, 3], 50)
    books = [[" ".join(f"w{k}x{i}" for i in range(n)) for n in lengths] for k in range(4)]
    corpus = make_corpus("four", books, False)
    _, valid = data.parts(corpus, corpus, 5, 0.5)
    split = data.valid_split(valid, valid, 8, 8)
    numbers = np.unique(split["words"])
    assert {corpus.words[k][:2] for k in numbers if k > UNKNOWN} == {"w0", "w1", "w2", "w3"}
    assert split["mask"].any(axis=1).sum() == 8


def test_words_are_counted_alike_in_blocks_of_any_size(monkeypatch):
    rng = np.random.default_rng(0)
    text = [" ".join(f"w{k}" for k in rng.integers(0, 9, n)) for n in rng.integers(1, 9, 100)]
    train = Triplets(make_corpus("made", [text], False), np.arange(1, 99), 7)
    whole = data._target_counts(train)
    for size in (1, 7, 100):
        monkeypatch.setattr(data, "_COUNTED", size)
        np.testing.assert_array_equal(data._target_counts(train), whole)
