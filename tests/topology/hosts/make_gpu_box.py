#!/usr/bin/env python3
"""Writes gpu_box.xml: a fictional host with eight GPUs in hwloc's XML.

It resembles common eight-GPU servers: 2 packages of 4 NUMA nodes. Every second node has a host bridge and a PCIe switch
with two GPUs and two InfiniBand NICs. A node has 4 cores of 2 CPUs, fewer than on such servers, to keep the file
readable. The graphics of a management chip and an Ethernet port must not count as a GPU and a rail. The GPUs have the
PCI addresses of tests/topology/machines/a100_nvswitch_8.txt, which adds the NVSwitch.

    make_gpu_box.py > gpu_box.xml
"""

PACKAGES, NODES, CORES = 2, 4, 4  # per object of the level above
NUM_CORES = PACKAGES * NODES * CORES
# NUMA node: first bus of its host bridge, GPUs with their buses, buses of the NICs. As on servers, buses are not
# numbered in node order.
SWITCHES = {
    3: (0x00, (0x07, 0x0F), (0x0B, 0x12)),
    1: (0x40, (0x47, 0x4E), (0x4B, 0x51)),
    7: (0x80, (0x87, 0x90), (0x8B, 0x94)),
    5: (0xB0, (0xB7, 0xBD), (0xBA, 0xC1)),
}
RAILS = [bus for node in (3, 1, 7, 5) for bus in SWITCHES[node][2]]

lines: list[str] = []
depth = 0
gp_index = 0


def line(text: str) -> None:
    lines.append("  " * depth + text)


def begin(object_type: str, **attributes: object) -> None:
    """Opens an object."""
    global depth, gp_index
    gp_index += 1
    attributes["gp_index"] = gp_index
    line(f'<object type="{object_type}" ' + " ".join(f'{k}="{v}"' for k, v in attributes.items()) + ">")
    depth += 1


def end() -> None:
    global depth
    depth -= 1
    line("</object>")


def info(name: str, value: str) -> None:
    line(f'<info name="{name}" value="{value}"/>')


def bitmap(bits: list[int]) -> str:
    value = sum(1 << b for b in bits)
    words = []
    while value or not words:
        words.append(f"0x{value & 0xFFFFFFFF:08x}")
        value >>= 32
    return ",".join(reversed(words))


def cpus_of(cores: range) -> list[int]:
    return [*cores, *(c + NUM_CORES for c in cores)]  # the second CPU of each core comes after all first ones


def sets(cpus: list[int], nodes: list[int]) -> dict[str, str]:
    c, n = bitmap(cpus), bitmap(nodes)
    return {"cpuset": c, "complete_cpuset": c, "nodeset": n, "complete_nodeset": n}


def core(number: int, node: int) -> None:
    cpus = cpus_of(range(number, number + 1))
    for cache, size, level, kind in (("L2Cache", 512 << 10, 2, 0), ("L1Cache", 32 << 10, 1, 1)):
        begin(cache, **sets(cpus, [node]), cache_size=size, depth=level, cache_linesize=64, cache_associativity=8,
              cache_type=kind)
    begin("Core", os_index=number, **sets(cpus, [node]))
    for cpu in cpus:
        begin("PU", os_index=cpu, **sets([cpu], [node]))
        end()
    for _ in range(3):
        end()


def bridge(depth_: int, upstream: int, slot: int, first: int, last: int, speed: float) -> None:
    begin("Bridge", bridge_type="1-1", depth=depth_, bridge_pci=f"0000:[{first:02x}-{last:02x}]",
          pci_busid=f"0000:{upstream:02x}:{slot:02x}.0", pci_type="0604 [1000:c010] [0000:0000] b0",
          pci_link_speed=f"{speed:f}")


def device(bus: int, pci_class: str, ids: str, speed: float, slot: int = 0) -> None:
    begin("PCIDev", pci_busid=f"0000:{bus:02x}:{slot:02x}.0", pci_type=f"{pci_class} [{ids}] [0000:0000] 00",
          pci_link_speed=f"{speed:f}")


def os_device(name: str, kind: int) -> None:
    begin("OSDev", name=name, osdev_type=kind)
    end()


def pcie_switch(node: int) -> None:
    x16 = 31.507692
    first, gpus, nics = SWITCHES[node]
    last = max(*gpus, *nics)
    begin("Bridge", bridge_type="0-1", depth=0, bridge_pci=f"0000:[{first:02x}-{last:02x}]")
    bridge(1, first, 1, first + 1, last, x16)  # root port
    bridge(2, first + 1, 0, first + 2, last, x16)  # the switch's upstream port
    for slot, bus in enumerate(sorted((*gpus, *nics))):
        bridge(3, first + 2, slot, bus, bus, x16)
        if bus in gpus:
            device(bus, "0302", "10de:20b2", x16)
            info("PCIVendor", "NVIDIA Corporation")
            info("PCIDevice", "GA100 [A100 SXM4 80GB]")
        else:
            rail = RAILS.index(bus)
            device(bus, "0207", "15b3:101b", x16)
            info("PCIVendor", "Mellanox Technologies")
            info("PCIDevice", "MT28908 Family [ConnectX-6]")
            os_device(f"ib{rail}", 2)
            os_device(f"mlx5_{rail}", 3)
        end()
        end()
    for _ in range(3):
        end()


def management(first: int) -> None:
    begin("Bridge", bridge_type="0-1", depth=0, bridge_pci=f"0000:[{first:02x}-{first + 2:02x}]")
    bridge(1, first, 1, first + 1, first + 1, 0.5)
    device(first + 1, "0300", "1a03:2000", 0.5)
    end()
    end()
    bridge(1, first, 2, first + 2, first + 2, 2.0)
    device(first + 2, "0200", "8086:1533", 2.0)
    os_device("eno1", 2)
    end()
    end()
    end()


def main() -> None:
    global depth
    num_nodes = PACKAGES * NODES
    line('<?xml version="1.0" encoding="UTF-8"?>')
    line('<!DOCTYPE topology SYSTEM "hwloc2.dtd">')
    line('<topology version="2.0">')
    depth += 1
    all_sets = sets(cpus_of(range(NUM_CORES)), list(range(num_nodes)))
    begin("Machine", os_index=0, **all_sets, allowed_cpuset=all_sets["cpuset"], allowed_nodeset=all_sets["nodeset"])
    info("HostName", "gpu-box")
    for p in range(PACKAGES):
        nodes = list(range(p * NODES, (p + 1) * NODES))
        begin("Package", os_index=p, **sets(cpus_of(range(p * NODES * CORES, (p + 1) * NODES * CORES)), nodes))
        info("CPUVendor", "AuthenticAMD")
        info("CPUModel", "AMD EPYC 7742 64-Core Processor")
        for n in nodes:
            cores = range(n * CORES, (n + 1) * CORES)
            place = sets(cpus_of(cores), [n])
            begin("Group", **place, kind=1001, subkind=0)
            begin("NUMANode", os_index=n, **place, local_memory=128 << 30)
            end()
            begin("L3Cache", **place, cache_size=16 << 20, depth=3, cache_linesize=64, cache_associativity=16,
                  cache_type=0)
            for c in cores:
                core(c, n)
            end()
            if n in SWITCHES:
                pcie_switch(n)
            if n == 0:
                management(0xE0)
            end()
        end()
    end()
    pairs = [(a, b) for a in range(num_nodes) for b in range(num_nodes)]
    values = [10 if a == b else 12 if a // NODES == b // NODES else 32 for a, b in pairs]
    indexes = "".join(f"{n} " for n in range(num_nodes))
    line(f'<distances2 type="NUMANode" nbobjs="{num_nodes}" kind="5" name="NUMALatency" indexing="os">')
    line(f'  <indexes length="{len(indexes)}">{indexes}</indexes>')
    for row in range(num_nodes):
        text = "".join(f"{v} " for v in values[row * num_nodes : (row + 1) * num_nodes])
        line(f'  <u64values length="{len(text)}">{text}</u64values>')
    line("</distances2>")
    depth -= 1
    line("</topology>")
    print("\n".join(lines))


main()
