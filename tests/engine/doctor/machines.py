"""Machines as they report themselves, in good order and with each failure that people have met. Data only."""

from msgspec.structs import replace

from engine.doctor.machine import Accelerator, DeviceNode, MachineFacts

X_ELITE = "Snapdragon(R) X Elite - X1E80100 - Qualcomm(R) Oryon(TM) CPU"
X_PLUS = "Snapdragon(R) X Plus - X1P42100 - Qualcomm(R) Oryon(TM) CPU"
X_PLUS_10 = "Snapdragon(R) X 10-core X1P64100 @ 3.40 GHz"
X = "Snapdragon(R) X - X126100 - Qualcomm(R) Oryon(TM) CPU"
X2_ELITE = "Snapdragon(R) X2 Elite - X2E84100 - Qualcomm Oryon(TM) CPU"
X2_PLUS = "Snapdragon(R) X2 Plus - X2P64100 - Qualcomm Oryon(TM) CPU"
FILES = (
    *("QnnHtp.dll", "QnnHtpV73Stub.dll", "QnnHtpV81Stub.dll", "libQnnHtpV68Skel.so"),
    *("libQnnHtpV73Skel.so", "libQnnHtpV81Skel.so", "libqnnhtpv73.cat", "libqnnhtpv81.cat"),
)
PACKAGE = r"C:\hexserve\Lib\site-packages\onnxruntime_qnn"
NPU = Accelerator("Snapdragon(R) X Elite - X1E80100 - Qualcomm(R) Hexagon(TM) NPU", "30.0.220.3000")
NODES = (
    DeviceNode("/dev/dma_heap/system", "crw-rw----", "root", "fastrpc"),
    DeviceNode("/dev/fastrpc-adsp", "crw-rw----", "root", "fastrpc"),
    DeviceNode("/dev/fastrpc-cdsp", "crw-rw----", "root", "fastrpc"),
)

WINDOWS = MachineFacts(
    system="win32",
    machine="ARM64",
    native_machine="ARM64",
    kernel="11",
    chip=X_ELITE,
    accelerators=(NPU,),
    library_folder=PACKAGE,
    library_files=FILES,
)
LINUX = MachineFacts(
    system="linux",
    machine="aarch64",
    native_machine="aarch64",
    kernel="6.19.0-qcom",
    chip="X1E78100, LENOVO ThinkPad T14s Gen 6, lenovo,thinkpad-t14s qcom,x1e78100 qcom,x1e80100",
    nodes=NODES,
    library_folder="/venv/onnxruntime_qnn",
    library_files=("libQnnHtp.so", "libQnnHtpV73Skel.so", "libQnnHtpV73Stub.so"),
)
SERVER = MachineFacts("linux", "x86_64", "x86_64", "6.8.0", "AMD EPYC 7C13 64-Core Processor", library_folder="/x")


def with_nodes(*nodes: DeviceNode) -> MachineFacts:
    return replace(LINUX, nodes=nodes)


# name: what the machine reports, the check that fails, what its line says, what its advice says
BROKEN: dict[str, tuple[MachineFacts, str, str, str]] = {
    "x64 Python on an ARM64 Windows": (
        replace(WINDOWS, machine="AMD64"),
        "Python",
        "this Python is made for AMD64 and emulated on ARM64: it cannot reach the NPU",
        "Windows installer (ARM64)",
    ),
    "no driver": (replace(WINDOWS, accelerators=()), "NPU driver", "lists no Hexagon NPU", "Windows Update"),
    "only another accelerator": (
        replace(WINDOWS, accelerators=(Accelerator("Some other device", "1.2.3.4"),)),
        "NPU driver",
        "lists no Hexagon NPU",
        "Windows Update",
    ),
    "a driver that is too old": (
        replace(WINDOWS, accelerators=(Accelerator(NPU.description, "30.0.31.250"),)),
        "NPU driver",
        "30.0.31.250 is older than 30.0.140.0",
        "install the newest Qualcomm Hexagon NPU driver",
    ),
    "a driver that is too old, X Plus": (
        replace(WINDOWS, chip=X_PLUS, accelerators=(Accelerator("Qualcomm(R) Hexagon(TM) NPU", "30.0.139.9999"),)),
        "NPU driver",
        "30.0.139.9999 is older than 30.0.140.0",
        "install the newest Qualcomm Hexagon NPU driver",
    ),
    "an unsigned skel": (
        replace(
            WINDOWS,
            library_folder=r"C:\qairt\lib",
            library_variable="libraries of HEXSERVE_QNN_OPTIONS",
            library_files=("QnnHtp.dll", "libQnnHtpV73Skel.so"),
        ),
        "skel",
        r"libQnnHtpV73Skel.so in C:\qairt\lib is unsigned (libqnnhtpv73.cat is missing)",
        "take out libraries of HEXSERVE_QNN_OPTIONS",
    ),
    "a package whose catalogue is gone": (
        replace(WINDOWS, chip=X2_ELITE, library_files=tuple(set(FILES) - {"libqnnhtpv81.cat"})),
        "skel",
        "libQnnHtpV81Skel.so",
        "pip install --force-reinstall onnxruntime-qnn",
    ),
    "no skel for this chip": (
        replace(LINUX, chip="SM8750 HDK"),
        "skel",
        "has no libQnnHtpV79Skel.so, which a Hexagon v79 loads",
        "pip install --force-reinstall onnxruntime-qnn",
    ),
    "another skel first": (
        replace(LINUX, adsp_files=("libQnnHtpV73Skel.so",)),
        "skel",
        "ADSP_LIBRARY_PATH leads to another libQnnHtpV73Skel.so",
        "unset ADSP_LIBRARY_PATH",
    ),
    "no device nodes": (
        with_nodes(),
        "NPU driver",
        "no fastrpc node of the compute DSP (found: none)",
        "kernel with the fastrpc driver",
    ),
    "only the audio DSP's node": (
        with_nodes(*NODES[:2]),
        "NPU driver",
        "no fastrpc node of the compute DSP (found: /dev/fastrpc-adsp)",
        "firmware of the compute DSP",
    ),
    "nodes of a group one is not in": (
        with_nodes(*NODES[:2], replace(NODES[2], may_open=False)),
        "NPU driver",
        "/dev/fastrpc-cdsp (crw-rw---- root:fastrpc) cannot be opened by this user",
        "sudo usermod -aG fastrpc $USER, then log in again",
    ),
    "nodes of root alone": (
        with_nodes(DeviceNode("/dev/fastrpc-cdsp", "crw-------", "root", "root", may_open=False)),
        "NPU driver",
        "/dev/fastrpc-cdsp (crw------- root:root) cannot be opened by this user",
        "udev rules",
    ),
    "a DMA heap of root alone": (
        with_nodes(DeviceNode("/dev/dma_heap/system", "cr--r--r--", "root", "root", may_open=False), *NODES[1:]),
        "NPU driver",
        "/dev/dma_heap/system (cr--r--r-- root:root) cannot be opened by this user",
        "udev rules",
    ),
    "WSL": (
        replace(LINUX, kernel="5.15.167.4-microsoft-standard-WSL2", chip="aarch64", nodes=()),
        "NPU driver",
        "Linux inside Windows (WSL), which has no device node of the NPU",
        "run hexserve in Windows itself",
    ),
    "a laptop of before": (
        replace(WINDOWS, chip="Snapdragon (TM) 8cx Gen 3 @ 3.0 GHz"),
        "chip",
        "its Hexagon is older than v73",
        "--target cpu",
    ),
}
WELL: dict[str, MachineFacts] = {
    "X Elite": WINDOWS,
    "X Plus, 8 cores": replace(WINDOWS, chip=X_PLUS),
    "X Plus, 10 cores": replace(WINDOWS, chip=X_PLUS_10),
    "X": replace(WINDOWS, chip=X),
    "X2 Elite": replace(WINDOWS, chip=X2_ELITE),
    "X2 Plus": replace(WINDOWS, chip=X2_PLUS),
    "the oldest driver that is new enough": replace(WINDOWS, accelerators=(replace(NPU, version="30.0.140.0"),)),
    "a driver whose version is no number": replace(WINDOWS, accelerators=(replace(NPU, version=""),)),
    "Linux": LINUX,
    "Linux on X Plus": replace(LINUX, chip="ASUS Zenbook A14, asus,zenbook-a14-ux3407qa qcom,x1p42100"),
    "a node of two is ours": with_nodes(replace(NODES[2], path="/dev/fastrpc-cdsp-secure", may_open=False), NODES[2]),
    "a folder of one's own that leaves the skel to the driver": replace(
        WINDOWS, library_variable="libraries of HEXSERVE_QNN_OPTIONS", library_files=("QnnHtp.dll",)
    ),
    "a server": SERVER,
    "WSL on x64, where there is no NPU anyway": replace(SERVER, kernel="5.15.167.4-microsoft-standard-WSL2"),
    "an x64 Windows": MachineFacts("win32", "AMD64", "AMD64", "11", "Intel(R) Core(TM) Ultra 7"),
    "a Snapdragon that is not known": replace(WINDOWS, chip="Snapdragon(R) X9 - Y0 - Qualcomm(R) Oryon(TM) CPU"),
}
