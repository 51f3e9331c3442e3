"""Entry script of one rank: `python rank.py DEVICE CHECKOUT RANK WORLD_SIZE FOLDER LIMIT_S`; see `perf.harness.ranks`.

Requests on stdin, replies on stdout, a JSON document a line; all ranks get the same requests. Printed text goes to
stderr, a file of each rank's own. The ranks rendezvous at a file in FOLDER, so that no port can be in use.
"""

import datetime
import gc
import json
import os
import sys
from pathlib import Path


def main() -> None:
    """Join the process group, answer until stdin ends."""
    from measuring import die_with_parent, import_perf  # type: ignore[import-not-found]  # the script beside this one

    die_with_parent()
    device, checkout, rank, world_size = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    folder, limit_s = Path(sys.argv[5]), float(sys.argv[6])
    import_perf()

    from perf.harness.clock import no_garbage_collection
    from perf.harness.json_process import take_pipes

    requests, replies = take_pipes()

    with no_garbage_collection():  # torch's objects are no garbage: collections that visit them take 0.5 s of the start
        import torch
        import torch.distributed as dist

        gc.freeze()

    from perf.harness.measure import pin_package
    from perf.harness.rank_work import RankWork

    pin_package(checkout)
    on_gpu = device == "cuda"
    if on_gpu:
        torch.cuda.set_device(rank)
    else:
        torch.set_num_threads(1)  # the ranks share the cores
    dist.init_process_group(
        "nccl" if on_gpu else "gloo",
        store=dist.FileStore(str(folder / "store"), world_size),
        rank=rank,
        world_size=world_size,
        timeout=datetime.timedelta(seconds=limit_s),
        device_id=torch.device("cuda", rank) if on_gpu else None,
    )
    work = RankWork(device)
    for line in requests:
        replies.write(json.dumps(work.answer(json.loads(line))) + "\n")
        replies.flush()
    os._exit(0)  # destroying the process group would wait for the other ranks, which may be dead


if __name__ == "__main__":
    main()
