"""Error texts people have posted, and the sentence each one gets."""

import pytest

from engine.runtime.qnn.environment import explain


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Failed to create context from binary. Error 30001: Can't read future blob", "newer QNN"),
        ("qnn_context_create_from_binary failed, err 5005", "newer QNN"),
        ("remote_handle64_open failed with 0x72", "driver refuses"),
        ("dspqueue_read failed: 0x2e", "stopped answering"),
        ("NPU crashed. SSR detected. Caused a subsystem restart", "crashed"),
        ("QNN graph execute error. Error code: 6031", "gave up"),
        ("Failed to finalize, error 1002", "not enough memory"),
        ("Failed to create device. Error code: 14001", "could not be opened"),
        ("/lib/libc.so.6: version `GLIBC_2.35' not found", "glibc 2.35"),
        ("EPContext node x is not compatible with any execution provider", "no provider took"),
        ("cannot open /dev/fastrpc-cdsp: permission denied", "fastrpc"),
        ("Unable to load backend, error: /x/libQnnHtp.so: cannot open shared object", "libraries of HEXSERVE_QNN"),
        ("Failed to register op package to backend. QNN_BACKEND_ERROR_NOT_SUPPORTED", "op_packages"),
        ("No module named 'onnxruntime_qnn'", '-m pip install "hexserve[qnn]"'),
    ],
)
def test_known_failures_have_a_plain_sentence(text: str, words: str) -> None:
    assert words in explain(text)


def test_unknown_failures_get_no_guess() -> None:
    assert explain("something else entirely") == ""
