"""What of a message makes it another failure, and what does not."""

import pytest

from biopsy.checks.message import Message, message_of
from support.measured import cpu_seconds

ORT = "[ONNXRuntimeError] : "

DIFFERENT = [
    ("CUDA error 700", "CUDA error 2"),
    (
        "CUDA failure 700: an illegal memory access was encountered ; GPU=0 ; file=/a/cuda_call.cc ; line=121",
        "CUDA failure 719: an illegal memory access was encountered ; GPU=0 ; file=/a/cuda_call.cc ; line=121",
    ),
    ("CUDA error: out of memory (out of memory)", "CUDA error: out of memory (unspecified launch failure)"),
    ("cudaGetLastError() returned 700", "cudaGetLastError() returned 2"),
    ("CUBLAS failure 13: CUBLAS_STATUS_EXECUTION_FAILED ; x", "CUBLAS failure 3: CUBLAS_STATUS_ALLOC_FAILED ; x"),
    ("CUDNN failure (CUDNN_STATUS_NOT_SUPPORTED) x", "CUDNN failure (CUDNN_STATUS_BAD_STATUS) x"),
    ("OSError: [Errno 12] Cannot", "OSError: [Errno 28] Cannot"),
    ("failed, errno 12", "failed, errno 13"),
    ("failed with status 3", "failed with status 4"),
    ("the exit code: 137", "the exit code: 134"),
    ("HRESULT 0x80070005", "HRESULT 0x8007000e"),
    ("DirectML failed (0x887A0005)", "DirectML failed (0x887A0006)"),
    ("error code 0x5 of the driver", "error code 0x6 of the driver"),
    (f"{ORT}1 : FAIL : Node (n4) [ShapeInferenceError] No", f"{ORT}1 : FAIL : Node (n4) [TypeInferenceError] No"),
    (f"{ORT}2 : INVALID_ARGUMENT : x", f"{ORT}9 : NOT_IMPLEMENTED : x"),
    ("Type 'tensor(float16)' of parameter (x) is invalid", "Type 'tensor(bool)' of parameter (x) is invalid"),
    ("accepted FP32, got: f16", "accepted FP32, got: i64"),
    (
        "[TRT] Error Code 1: Cuda Runtime (an illegal memory access was encountered)",
        "[TRT] Error Code 1: Cuda Runtime (invalid argument or so)",
    ),
    ("4: [a.cpp::f::20] Error Code 4: Miscellaneous (x)", "2: [a.cpp::f::20] Error Code 2: Internal Error (x)"),
    (
        "[TRT] 4: (IShuffleLayer n_1: reshape changes volume. Reshaping [4] to [5].)",
        "[TRT] 4: (IShuffleLayer n_1: reshape dimension with more than one -1 wildcard.)",
    ),
    ("Not equal to tolerance rtol=1e-07 (shapes (2,), (3,) mismatch)", "Not equal to tolerance rtol=1e-07 (x and y)"),
    ('it says "Unsupported data type" of it', 'it says "Unsupported memory layout" of it'),
    ("Check failed: bad scale", "Check failed: bad shape"),
    ("the value is nan", "the value is 1.5"),
]  # fmt: skip

ALIKE = [
    ("max error 5 at [1,2]", "max error 12 at [3,4,5]"),
    ("error: 12 of 30 elements differ", "error: 740 of 1024 elements differ"),
    ("relative error 0.01 is too much", "relative error 0.5 is too much"),
    ("absolute error: 3", "absolute error: 2"),
    ("error 3 > 1", "error 25 > 1"),
    ("error: 5 exceeds the tolerance", "error: 17 exceeds the tolerance"),
    ("tensor 'b1' of '名前' (名1)", "tensor 'i2' of '名' (字)"),
    ("|difference| 0.458 at 0x7f3acd001230", "|difference| 2e-05 at 0x55d0aa120f00"),
    (f"{ORT}1 : FAIL : Node (n4) Op (Add) [TypeInferenceError] No",
     f"{ORT}1 : FAIL : Node (n17) Op (Mul) [TypeInferenceError] No"),
    (f"{ORT}1 : FAIL : Load model from /tmp/a.onnx failed: x", f"{ORT}1 : FAIL : Load model from /b/c2.onnx failed: x"),
    (f"{ORT}9 : NOT_IMPLEMENTED : no implementation for Erf(13) node with name 'erf_12'",
     f"{ORT}9 : NOT_IMPLEMENTED : no implementation for Erf(9) node with name 'layer/erf'"),
    (f"{ORT}2 : INVALID_ARGUMENT : Got: 3 Expected: 2", f"{ORT}2 : INVALID_ARGUMENT : Got: 1 Expected: 4"),
    ("While validating node 'opset1::Add Add_12 (x[0]:f32[1,2])': Argument shapes are inconsistent.",
     "While validating node 'opset1::Add n7 (a[0]:f32[3], b[1]:f32[4])': Argument shapes are inconsistent."),
    ("Exception from src/inference/src/cpp/core.cpp:84: no", "Exception from src/inference/src/cpp/core.cpp:90: no"),
    ("(IShuffleLayer n_1: reshape changes volume. Reshaping [4] to [5].)",
     "(IShuffleLayer /model/Reshape_2: reshape changes volume. Reshaping [1,3] to [2,2].)"),
    ("Tensor 'x' is wrong", "Tensor 'the_mask' is wrong"),
    ("values (input, mask) differ", "values (hidden, logits, mask) differ"),
    ("tensor n4 has 3 dims", "tensor n12 has 4 dims"),
    ("got [[1, 2], [3, 4]]", "got [[[5]], [[6]], [[7]]]"),
    ("got shape {1,3} of {x: 4}", "got shape {2} of {y: 5}"),
    ("Required inputs (['x', 'y']) are missing", "Required inputs (['z']) are missing"),
    ("index 7 is out of bounds for axis 0 with size 3", "index 1 is out of bounds for axis 1 with size 1"),
    ("values 1 2 3 differ", "values 4 5 differ"),
    ("at line 12, 3.5 ms", "at line 340, 12 ms"),
]  # fmt: skip


@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_what_names_an_error_makes_another_failure(one: str, other: str) -> None:
    assert not message_of(one).means(message_of(other))
    assert message_of(one).means(message_of(one))


@pytest.mark.parametrize(("one", "other"), ALIKE)
def test_names_shapes_values_and_addresses_make_no_other_failure(one: str, other: str) -> None:
    assert message_of(one).meaning == message_of(other).meaning


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("failed: /tmp/x/candidate.onnx", "failed: candidate.onnx"),
        ("took 3.2 s", "took 350 ms"),
        ("2026-11-22 02:28:44.123 [E] no", "2026-11-23 12:00:01.5 [E] no"),
        ("at 0x7f3acd001230", "at 0x55d0aa120f00"),
        ("process 12 died", "process 4711 died"),
        ("==12== Invalid read", "==4711== Invalid read"),
        ("check[12]: no", "check[4711]: no"),
    ],
)
def test_exact_leaves_out_places_addresses_times_and_processes(one: str, other: str) -> None:
    candidate = "/tmp/x/candidate.onnx"
    assert message_of(one, candidate).exact == message_of(other, candidate).exact


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("got [1,2]", "got [1,3]"),
        ("node 'a' failed", "node 'b' failed"),
        ("difference 0.25", "difference 0.5"),
        ("line 12", "line 13"),
        ("in /a/b.cc", "in /a/c.cc"),
        ("HRESULT 0x80070005", "HRESULT 0x80070006"),
        ("status 3", "status 4"),
    ],
)
def test_exact_means_exact_everywhere_else(one: str, other: str) -> None:
    assert message_of(one).exact != message_of(other).exact


def test_a_list_of_operators_is_split_and_one_that_stays_is_enough() -> None:
    def refused(*names: str) -> Message:
        return message_of(f"Model wasn't converted.\n-- No conversion rule found for operations: {', '.join(names)}")

    assert refused("my.First", "my.Second").means(refused("my.Second"))
    assert refused("Bernoulli-17", "Det-17").means(refused("Det-17"))
    assert not refused("my.First", "my.Second").means(refused("my.Third"))
    assert not refused("my.Op1").means(refused("my.Op2"))
    assert not refused("my.First").means(message_of("Model wasn't converted."))
    assert str(refused("a.B", "c.D")) == "Model wasn't converted. No conversion rule found for operations: a.B, c.D"


def test_a_list_of_one_line_each_is_split_too() -> None:
    both = message_of("errors:\n- node 'a': unsupported layout\n- node 'b': unsupported type")
    assert both.means(message_of("errors:\n- node 'c': unsupported type"))
    assert not both.means(message_of("errors:\n- node 'a': unsupported rank"))


BOMBS = ["(", "a_", "A_", "error ", "a error ", "0x", "a.", "~/", "/a", "1 2 ", "1:", "ops ", "cuda", "xError", "- a\n"]


@pytest.mark.parametrize("piece", BOMBS)
def test_no_message_takes_long(piece: str) -> None:
    """Every expression is linear, or bounded: a check may print anything."""
    text = piece * (100_000 // len(piece))
    assert cpu_seconds(lambda: message_of(text, "/tmp/candidate.onnx")) < 3
    assert len(message_of(text, "/tmp/candidate.onnx").meaning) <= 400
