"""A training on digits that checks itself, for one process or several under torchrun.

torchrun --nproc-per-node 2 tests/training/distributed_case.py RUN '{"steps": 8}' …
"""

import json
import os
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from linearizer import data
from linearizer.apps.attributes import model as attributes
from linearizer.bijections import ActNorm
from linearizer.training import checkpoint
from linearizer.training import loop as training
from linearizer.training.checkpoint import tensors_of
from linearizer.training.loop import Training
from linearizer.training.processes import whole

run, changes, model_changes = Path(sys.argv[1]), json.loads(sys.argv[2]), json.loads(sys.argv[3])
rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
stop_after = changes.pop("stop_after", None)
torch.set_num_threads(1)
if world > 1:
    dist.init_process_group("gloo")  # ours; fit() would start and end one of its own

if rank:
    # Only the first process may write.
    def refuse(*args, **options):
        raise AssertionError(f"process {rank} writes {args[0]}")

    for module in (checkpoint, training):
        for name in ("atomic", "write_tensors", "write_weights", "write_config"):
            if hasattr(module, name):
                setattr(module, name, refuse)

source = data.load("digits")
calls, seen = [], []
batch = source.train.batch


class Watched:
    """The training set, which notes what this process asks for."""

    def __len__(self):
        return len(source.train)

    def batch(self, index):
        seen.append(index)
        if rank == 0 and len(index) < 100 and len(calls) and len(seen) == stop_after:
            os.kill(os.getpid(), signal.SIGTERM)  # one process is asked to stop; all do
        return batch(index)


config = attributes.Config(blocks=2, hidden=32, **model_changes)
torch.manual_seed(rank)  # weights differ until they are made equal
model = attributes.Attributes(config)
initialize = model.initialize
model.initialize = lambda b: (calls.append(len(b.x)), initialize(b))

general = {"batch": 32, "log_every": 1, "validate_every": 4, "checkpoint_every": 4,
           "tensorboard": False, "rate": 2e-3}  # fmt: skip
try:
    result = training.fit(
        model, attributes.loss, Watched(), Training(**{**general, **changes}), run,
        validation=source.val, measure=attributes.measure, metric="accuracy", maximize=True,
        settings={"app": "attributes", "model": config.model_dump(mode="json")},
        resume=True, progress=False,
    )  # fmt: skip
except training.Interrupted as stop:
    result = stop.result

if world > 1:
    for tensor in tensors_of(model).values():
        part = getattr(tensor, "to_local", lambda t=tensor: t)().detach()
        if part is tensor.detach() or part.shape == tensor.shape:
            both = [torch.empty_like(part) for _ in range(world)]
            dist.all_gather(both, part.contiguous())
            assert all(torch.equal(both[0], t) for t in both[1:]), "processes differ"
    mine = torch.cat(seen[-changes.get("accumulate", 1) :])  # of the last step
    both = [torch.empty_like(mine) for _ in range(world)]
    dist.all_gather(both, mine)
    assert not set(both[0].tolist()) & set(both[1].tolist()), "two processes share samples"
    dist.destroy_process_group()
norms = [m for m in model.modules() if isinstance(m, ActNorm)]
assert norms and all(bool(whole(m.initialized)) for m in norms)
assert len(calls) <= 1
if rank == 0:
    print(json.dumps({"world": world, "initialized": len(calls), **result._asdict()}))
sys.stdout.flush()
os._exit(0)  # see cli.main
