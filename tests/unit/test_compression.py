"""The codecs of record batches: what they read and write, and how little a hostile input costs."""

from __future__ import annotations

import gzip
import os
import random
import struct
import subprocess
import sys
import textwrap
import tracemalloc
import zlib

import aiokafka.codec
import cramjam
import kafka.codec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from culver.errors import ErrorCode, KafkaError
from culver.protocol.compression import XERIAL_HEADER, Codec, compress, decompress

MIB = 1 << 20
COMPRESSING = [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD]
SAMPLE = b"".join(b'{"order": %d, "state": "paid"}' % number for number in range(5_000))

CLIENT_ENCODERS = {
    Codec.GZIP: (kafka.codec.gzip_encode, aiokafka.codec.gzip_encode),
    Codec.SNAPPY: (kafka.codec.snappy_encode, aiokafka.codec.snappy_encode),
    Codec.LZ4: (kafka.codec.lz4_encode, aiokafka.codec.lz4_encode),
    Codec.ZSTD: (kafka.codec.zstd_encode, aiokafka.codec.zstd_encode),
}
CLIENT_DECODERS = {
    Codec.GZIP: (kafka.codec.gzip_decode, aiokafka.codec.gzip_decode),
    Codec.SNAPPY: (kafka.codec.snappy_decode, aiokafka.codec.snappy_decode),
    Codec.LZ4: (kafka.codec.lz4_decode, aiokafka.codec.lz4_decode),
    Codec.ZSTD: (kafka.codec.zstd_decode, aiokafka.codec.zstd_decode),
}


def refused(codec: int, data: bytes, max_bytes: int = MIB) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        decompress(codec, data, max_bytes)
    return caught.value.code


@pytest.mark.parametrize("codec", list(Codec))
@given(data=st.binary(max_size=5_000), times=st.integers(1, 40))
def test_what_is_compressed_comes_back(codec: Codec, data: bytes, times: int) -> None:
    data *= times
    assert decompress(codec, compress(codec, data), len(data)) == data


def test_lz4_frames_have_independent_blocks_as_the_java_client_demands() -> None:
    flags = compress(Codec.LZ4, SAMPLE)[4]
    assert flags & 0x20, "Kafka refuses a frame whose blocks depend on each other"


@pytest.mark.parametrize("codec", COMPRESSING)
def test_clients_read_what_culver_writes_and_the_other_way_round(codec: Codec) -> None:
    for decode in CLIENT_DECODERS[codec]:
        assert bytes(decode(compress(codec, SAMPLE))) == SAMPLE
    for encode in CLIENT_ENCODERS[codec]:
        assert decompress(codec, bytes(encode(SAMPLE)), MIB) == SAMPLE


@pytest.mark.parametrize("codec", COMPRESSING)
def test_a_view_into_a_larger_buffer_is_enough(codec: Codec) -> None:
    view = memoryview(b"before" + compress(codec, SAMPLE) + b"after")[6:-5]
    assert decompress(codec, view, MIB) == SAMPLE


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD])
def test_levels_change_the_size_and_not_the_content(codec: Codec) -> None:
    words = random.Random(1)
    data = b" ".join(
        words.choice((b"order", b"paid", b"open", b"%d" % words.getrandbits(16))) for _ in range(20_000)
    )
    quick, thorough = compress(codec, data, 1), compress(codec, data, 9)
    assert len(thorough) < len(quick)
    assert decompress(codec, quick, MIB) == decompress(codec, thorough, MIB) == data


@pytest.mark.parametrize(
    ("codec", "levels"),
    [
        (Codec.GZIP, (-1, 1, 9)),
        (Codec.LZ4, (1, 9, 17)),
        (Codec.ZSTD, (-131072, -1, 0, 3, 22)),
        (Codec.SNAPPY, (1,)),
    ],
)
def test_every_level_that_a_topic_may_set_works(codec: Codec, levels: tuple[int, ...]) -> None:
    for level in levels:
        assert decompress(codec, compress(codec, SAMPLE[:5000], level), MIB) == SAMPLE[:5000]


def test_codec_none_hands_the_data_through_without_copying_it() -> None:
    assert decompress(Codec.NONE, SAMPLE, MIB) is SAMPLE
    assert refused(Codec.NONE, SAMPLE, len(SAMPLE) - 1) == ErrorCode.MESSAGE_TOO_LARGE


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_a_codec_there_is_not_is_refused_both_ways(codec: int) -> None:
    assert refused(codec, b"x") == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    with pytest.raises(KafkaError) as caught:
        compress(codec, b"x")
    assert caught.value.code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


class TestForms:
    """The less usual forms that real clients write."""

    def test_gzip_of_several_members(self) -> None:
        assert decompress(Codec.GZIP, gzip.compress(b"one ") + gzip.compress(b"two"), MIB) == b"one two"

    def test_zstd_of_several_frames_without_a_content_size(self) -> None:
        def frame(data: bytes) -> bytes:
            compressor = cramjam.zstd.Compressor()
            compressor.compress(data)
            return bytes(compressor.finish())

        assert frame(b"x")[4] & 0xE0 == 0  # neither a content size nor a single segment
        assert decompress(Codec.ZSTD, frame(SAMPLE) + frame(b"two"), MIB) == SAMPLE + b"two"

    @pytest.mark.parametrize("flags", [0x40, 0x60, 0x70, 0x64])
    def test_lz4_frames_with_and_without_checksums_and_linked_blocks(self, flags: int) -> None:
        # Java writes 0x60 (independent blocks), librdkafka 0x40 or 0x60; 0x10 and 0x04 add checksums.
        data = SAMPLE[:60_000]
        block = bytes(cramjam.lz4.compress_block(data, store_size=False))
        descriptor = bytes((flags, 0x40))
        frame = struct.pack("<I", 0x184D2204) + descriptor + bytes((xxh32(descriptor) >> 8 & 0xFF,))
        frame += struct.pack("<I", len(block)) + block
        if flags & 0x10:
            frame += struct.pack("<I", xxh32(block))
        frame += bytes(4)
        if flags & 0x04:
            frame += struct.pack("<I", xxh32(data))
        assert decompress(Codec.LZ4, frame, MIB) == data

    def test_lz4_frames_have_independent_blocks(self) -> None:
        # Kafka's Java code refuses linked ones, the library's default.
        frame = compress(Codec.LZ4, os.urandom(200_000))
        assert (frame[:4], frame[4] & 0x20) == (struct.pack("<I", 0x184D2204), 0x20)

    def test_snappy_without_the_xerial_frame(self) -> None:
        assert decompress(Codec.SNAPPY, bytes(cramjam.snappy.compress_raw(SAMPLE)), MIB) == SAMPLE

    def test_snappy_streams_that_were_joined(self) -> None:
        joined = compress(Codec.SNAPPY, SAMPLE) + compress(Codec.SNAPPY, b"two")
        assert decompress(Codec.SNAPPY, joined, MIB) == SAMPLE + b"two"

    def test_snappy_blocks_of_any_size(self) -> None:
        blocks = [bytes(cramjam.snappy.compress_raw(SAMPLE[start : start + 999])) for start in (0, 999)]
        stream = XERIAL_HEADER + b"".join(struct.pack(">i", len(block)) + block for block in blocks)
        assert decompress(Codec.SNAPPY, stream, MIB) == SAMPLE[: 2 * 999]


class TestDamage:
    @pytest.mark.parametrize("codec", COMPRESSING)
    def test_nothing_and_noise_are_corrupt(self, codec: Codec) -> None:
        for data in (b"", b"\x00", b"\xff" * 5, b"no codec wrote this", os.urandom(200)):
            if codec is Codec.SNAPPY and data == b"\x00":
                continue  # one raw block of no bytes
            assert refused(codec, data) in (ErrorCode.CORRUPT_MESSAGE, ErrorCode.MESSAGE_TOO_LARGE)

    @pytest.mark.parametrize("codec", COMPRESSING)
    def test_a_cut_at_any_byte_is_corrupt(self, codec: Codec) -> None:
        whole = compress(codec, b"some records " * 20)
        for end in range(len(whole)):
            if codec is Codec.SNAPPY and end == len(XERIAL_HEADER):
                continue  # a stream of no blocks
            assert refused(codec, whole[:end]) == ErrorCode.CORRUPT_MESSAGE, end

    @pytest.mark.parametrize("size", [-1, 10, 2**31 - 1])
    def test_a_snappy_block_that_claims_more_than_there_is_is_corrupt(self, size: int) -> None:
        assert (
            refused(Codec.SNAPPY, XERIAL_HEADER + struct.pack(">i", size) + b"abc")
            == ErrorCode.CORRUPT_MESSAGE
        )

    @given(data=st.binary(max_size=300))
    def test_any_bytes_give_an_answer_or_an_error_of_the_table(self, data: bytes) -> None:
        for codec in COMPRESSING:
            try:
                outcome: object = "fits" if len(decompress(codec, data, 10_000)) <= 10_000 else "too long"
            except KafkaError as error:
                outcome = error.code
            assert outcome in ("fits", ErrorCode.CORRUPT_MESSAGE, ErrorCode.MESSAGE_TOO_LARGE)


class TestBounds:
    @pytest.mark.parametrize("codec", COMPRESSING)
    def test_one_byte_too_many_is_too_large(self, codec: Codec) -> None:
        compressed = compress(codec, SAMPLE)
        assert decompress(codec, compressed, len(SAMPLE)) == SAMPLE
        assert refused(codec, compressed, len(SAMPLE) - 1) == ErrorCode.MESSAGE_TOO_LARGE

    @pytest.mark.parametrize("codec", COMPRESSING)
    def test_a_bomb_costs_no_more_than_the_bound(self, codec: Codec) -> None:
        bomb = compress(codec, bytes(64 * MIB))
        tracemalloc.start()
        try:
            assert refused(codec, bomb, MIB) == ErrorCode.MESSAGE_TOO_LARGE
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak < MIB + len(bomb) // 32 + 64 * 1024

    @pytest.mark.parametrize("codec", COMPRESSING)
    def test_a_claimed_size_allocates_nothing(self, codec: Codec) -> None:
        tracemalloc.start()
        try:
            assert refused(codec, lie(codec, 64 * MIB), 100 * MIB) == ErrorCode.CORRUPT_MESSAGE
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak < MIB

    def test_bombs_do_not_grow_the_process(self) -> None:
        script = """
            import resource, sys
            from culver.errors import KafkaError
            from culver.protocol.compression import decompress
            pairs = [line.split() for line in sys.stdin]
            bombs = [(int(codec), bytes.fromhex(data)) for codec, data in pairs]
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            for codec, bomb in bombs:
                try:
                    decompress(codec, bomb, 1 << 20)
                except KafkaError:
                    pass
                else:
                    raise SystemExit("a bomb went through")
            print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
        """
        bombs = [(codec, compress(codec, bytes(32 * MIB))) for codec in COMPRESSING]
        bombs += [(codec, lie(codec, 64 * MIB)) for codec in COMPRESSING]
        # A zstd frame that asks for the largest window there is, and holds three bytes.
        window = (
            bytes.fromhex("28b52ffd") + bytes((0x00, 17 << 3)) + (1 | 3 << 3).to_bytes(3, "little") + b"abc"
        )
        bombs.append((Codec.ZSTD, window * 400_000))
        lines = "\n".join(f"{int(codec)} {bomb.hex()}" for codec, bomb in bombs)
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(script)],
            input=lines,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        assert int(done.stdout) < 8 * 1024  # KiB


def lie(codec: Codec, claimed: int) -> bytes:
    """A few bytes whose header claims `claimed` bytes of content."""
    if codec is Codec.SNAPPY:
        claim = bytes(
            (claimed & 0x7F | 0x80, claimed >> 7 & 0x7F | 0x80, claimed >> 14 & 0x7F | 0x80, claimed >> 21)
        )
        return claim + b"\x00"
    if codec is Codec.GZIP:
        return gzip.compress(b"x")[:-8] + struct.pack("<II", zlib.crc32(b"x"), claimed)
    if codec is Codec.LZ4:
        descriptor = bytes((0x68, 0x70)) + struct.pack("<Q", claimed)
        return struct.pack("<I", 0x184D2204) + descriptor + bytes((xxh32(descriptor) >> 8 & 0xFF, 0))
    # zstd: a four-byte content size, single segment, then nothing
    return bytes.fromhex("28b52ffd") + bytes((0xA0,)) + struct.pack("<I", claimed)


def xxh32(data: bytes) -> int:
    """The checksum inside LZ4 frames, for the frames made here by hand."""
    return int.from_bytes(_xxhash32(data), "big")


def _xxhash32(data: bytes) -> bytes:
    prime = (2654435761, 2246822519, 3266489917, 668265263, 374761393)
    mask = 0xFFFFFFFF

    def rotate(value: int, bits: int) -> int:
        return (value << bits | value >> (32 - bits)) & mask

    position = 0
    if len(data) >= 16:
        lanes = [prime[0] + prime[1] & mask, prime[1], 0, -prime[0] & mask]
        while position + 16 <= len(data):
            for index, word in enumerate(struct.unpack_from("<4I", data, position)):
                lanes[index] = rotate(lanes[index] + word * prime[1] & mask, 13) * prime[0] & mask
            position += 16
        total = sum(rotate(lane, bits) for lane, bits in zip(lanes, (1, 7, 12, 18), strict=True)) & mask
    else:
        total = prime[4]
    total = total + len(data) & mask
    while position + 4 <= len(data):
        (word,) = struct.unpack_from("<I", data, position)
        total = rotate(total + word * prime[2] & mask, 17) * prime[3] & mask
        position += 4
    for byte in data[position:]:
        total = rotate(total + byte * prime[4] & mask, 11) * prime[0] & mask
    total = (total ^ total >> 15) * prime[1] & mask
    total = (total ^ total >> 13) * prime[2] & mask
    return (total ^ total >> 16).to_bytes(4, "big")
