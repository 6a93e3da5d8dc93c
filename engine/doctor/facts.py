"""What a machine reports of itself, as data: the checks decide on it alone."""

import msgspec


class DeviceNode(msgspec.Struct, frozen=True):
    """A device file of Linux. mode: as `ls` writes it; may_open: read and write, by this user."""

    path: str
    mode: str = ""
    owner: str = ""
    group: str = ""
    may_open: bool = True


class Accelerator(msgspec.Struct, frozen=True):
    """A compute accelerator of Windows' device manager."""

    description: str
    version: str


class MachineFacts(msgspec.Struct, frozen=True):
    """system, machine: of this Python, as `sys.platform` and `platform.machine()`; native_machine: of the system.

    kernel: `platform.release()`. nodes: fastrpc's and the DMA heap, Linux only. accelerators: Windows only.
    library_folder: where the QNN libraries lie, '' without any; library_files: their names.
    library_variable: what set the folder, '' for the package's own. adsp_files: libraries for the NPU in the folders of
    ADSP_LIBRARY_PATH.
    """

    system: str
    machine: str
    native_machine: str
    kernel: str = ""
    chip: str = ""
    nodes: tuple[DeviceNode, ...] = ()
    accelerators: tuple[Accelerator, ...] = ()
    library_folder: str = ""
    library_files: tuple[str, ...] = ()
    library_variable: str = ""
    adsp_files: tuple[str, ...] = ()
