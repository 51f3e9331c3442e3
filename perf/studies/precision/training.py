"""Training in fp32, bf16 and fp16 with loss scaling on one stream: speed, memory, stability and convergence."""

import functools
import itertools
import math
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from perf.harness.clock import WallClock
from perf.harness.cuda_clocks import GpuWallClock
from perf.harness.status import refusals
from perf.studies.device import bench
from perf.studies.progress import progress
from perf.studies.rows import Row, refusal
from perf.workloads import measured
from perf.workloads.transformer_oracle import ExactStep, Size, Weights, exact_of
from perf.workloads.transformer_state import restore
from perf.workloads.transformer_training import check, floor
from perf.workloads.workload import Floor, Workload

PRECISIONS = ("fp32", "bf16", "fp16")
WARM_UP = 5  # steps whose time does not count
NOISE = 0.1  # of the tokens are drawn at random
SCALE = 2.0**16  # GradScaler's first

SEED_MODEL = {"d_model": 768, "d_ff": 3072, "num_layers": 6, "num_heads": 12}


@dataclass(frozen=True)
class Run:
    """The parameters that all precisions share."""

    config: Any
    """A `ModelConfig`."""

    device: str
    context: int
    batch: int
    steps: int
    seed: int
    lr: float

    @property
    def window(self) -> int:
        """The number of steps over which a shown loss is averaged."""
        return max(1, self.steps // 20)

    @property
    def lowest_loss(self) -> float:
        """The entropy of the stream: the first target of a sequence is random, each other with probability `NOISE`."""
        vocab = self.config.vocab_size
        right, wrong = 1 - NOISE + NOISE / vocab, NOISE / vocab
        known = -right * math.log(right) - (vocab - 1) * wrong * math.log(wrong)
        return (math.log(vocab) + (self.context - 1) * known) / self.context


def sizes() -> dict[str, Any]:
    """Return the named configurations: the course's, and "seed", a model of 6 layers with d_model 768."""
    return {"seed": measured("configs", "ModelConfig")(**SEED_MODEL)} | measured("configs", "MODEL_CONFIGS")


def stream(run: Run) -> Iterator[tuple[Any, Any]]:
    """Yield batches (ids, targets) without end, the same for the same seed on every device.

    The next token is 7 times the last one, plus 1, or plus half the vocabulary if the one before that was odd; one in
    ten is random instead. A model first learns that two tokens are likely, then, by attention, which of them it is.
    """
    import torch

    vocab = run.config.vocab_size  # 7 divides none that we have, so that every token is as frequent
    generator = torch.Generator().manual_seed(run.seed)
    shape = (run.batch, run.context + 1)
    while True:
        tokens = torch.randint(vocab, shape, generator=generator)
        follows = torch.rand(shape, generator=generator) >= NOISE
        for t in range(2, run.context + 1):
            following = (7 * tokens[:, t - 1] + 1 + tokens[:, t - 2] % 2 * (vocab // 2)) % vocab
            tokens[:, t] = torch.where(follows[:, t], following, tokens[:, t])
        on_device = tokens.to(run.device)
        yield on_device[:, :-1].contiguous(), on_device[:, 1:].contiguous()


def train_step(run: Run, precision: str) -> Any:
    """Return the `TrainStep` of a new model, whose weights depend on the seed alone, without a batch."""
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(run.seed)
        model = measured("transformer", "TransformerLM")(run.config, run.context).to(run.device)
    optimizer = measured("training", "adamw")(model, lr=run.lr)
    return measured("training", "TrainStep")(
        model=model, optimizer=optimizer, ids=None, targets=None, precision=precision, scaler=_scaler(run, precision)
    )


def _scaler(run: Run, precision: str) -> Any:
    import torch

    return torch.amp.GradScaler(run.device, init_scale=SCALE) if precision == "fp16" else None


def rows(run: Run) -> list[Row]:
    """Return a row for each precision."""
    return [
        _unless_refused("training", precision, functools.partial(_train, run, precision)) for precision in PRECISIONS
    ]


def _train(run: Run, precision: str) -> Row:
    import torch

    exact, weights = _expected(run)
    cuda = torch.cuda if run.device == "cuda" else None
    baseline = cuda.memory_allocated() if cuda else 0
    train = train_step(run, precision)
    losses: list[float] = []

    def step() -> Any:
        loss = train.step()
        losses.append(float(loss))
        return loss

    def checked() -> float:
        train.ids, train.targets = next(stream(run))
        error = check(train, "step", train.step, lambda: exact, weights=weights, lr=run.lr)
        restore(train.model, train.optimizer, weights)
        train.scaler = _scaler(run, precision)
        losses.clear()
        return error

    train.ids, train.targets = next(stream(run))
    work = Workload(run=step, check=checked, floor=_floor(run, precision))
    bench().check(work)
    clock = GpuWallClock() if run.device == "cuda" else WallClock()
    seconds, peaks = [], []
    skipped = overflowed_steps = overflowed = 0
    batches = itertools.islice(stream(run), run.steps)
    for ids, targets in progress(batches, unit=f"step in {precision}", total=run.steps):
        train.ids, train.targets = ids, targets
        scale = train.scaler.get_scale() if train.scaler else 1.0
        if cuda:
            cuda.reset_peak_memory_stats()
        seconds += bench().batch(clock, work, "warm", 1)
        peaks.append(cuda.max_memory_allocated() if cuda else 0)
        skipped += bool(train.scaler) and train.scaler.get_scale() < scale
        broken = _not_finite([parameter.grad for parameter in train.model.parameters()])
        overflowed += broken
        overflowed_steps += broken > 0
    timed = seconds[WARM_UP:]
    return {
        "part": "training",
        "precision": precision,
        "status": "ok",
        "samples_per_s": run.batch / statistics.mean(timed),
        "step_mean_s": statistics.mean(timed),
        "step_median_s": statistics.median(timed),
        "step_sd_s": statistics.stdev(timed),
        "peak_bytes": max(peaks) - baseline if cuda else None,
        "final_loss": statistics.mean(losses[-run.window :]),
        "skipped_steps": skipped,
        "overflowed_steps": overflowed_steps,
        "overflowed_elements": overflowed,
        "loss_scale": train.scaler.get_scale() if train.scaler else None,
        "losses": losses,
    }


@functools.cache
def _expected(run: Run) -> tuple[ExactStep, Weights]:
    """Return the exact results on the first batch, and the weights from which all precisions start."""
    state = {name: weight.detach().clone() for name, weight in train_step(run, "fp32").model.named_parameters()}

    def weights(name: str, shape: tuple[int, ...], device: str) -> Any:
        return state[name]

    return exact_of(_size(run), *next(stream(run)), weights), weights


def _size(run: Run) -> Size:
    config = run.config
    return Size(config.d_model, config.d_ff, config.num_layers, config.num_heads, config.vocab_size)


def _floor(run: Run, precision: str) -> Floor:
    return floor(_size(run), run.context, precision, "step", run.batch)


def underflow(run: Run) -> list[Row]:
    """Count the first batch's gradient elements that are zero in half precision but not in fp32.

    With and without the first scale of `GradScaler`, whose overflows are counted as well.
    """
    ways = (("fp16", 1.0), ("fp16", SCALE), ("bf16", 1.0))
    exact = _unless_refused("underflow", "fp32", lambda: {"status": "ok", "nonzero": _nonzero(run)})
    if exact["status"] != "ok":
        return [exact]
    return [
        _unless_refused("underflow", precision, functools.partial(_vanished, run, precision, scale, exact["nonzero"]))
        for precision, scale in ways
    ]


def _nonzero(run: Run) -> list[Any]:
    return [gradient != 0 for gradient in _first_gradients(run, "fp32", 1.0)]


def _vanished(run: Run, precision: str, scale: float, nonzero: list[Any]) -> Row:
    gradients = _first_gradients(run, precision, scale)
    zero = sum(int(((gradient == 0) & here).sum()) for gradient, here in zip(gradients, nonzero, strict=True))
    return {
        "part": "underflow",
        "precision": precision,
        "status": "ok",
        "scale": scale,
        "nonzero_in_fp32": sum(int(here.sum()) for here in nonzero),
        "zero_here": zero,
        "not_finite": _not_finite(gradients),
    }


def _first_gradients(run: Run, precision: str, scale: float) -> list[Any]:
    train = train_step(run, precision)
    train.scaler = None
    train.ids, train.targets = next(stream(run))
    train.backward(train.forward() * scale)
    return [parameter.grad for parameter in train.model.parameters()]


def _not_finite(gradients: list[Any]) -> int:
    return int(sum((~gradient.isfinite()).sum() for gradient in gradients))


def _unless_refused(part: str, precision: str, work: Callable[[], Row]) -> Row:
    """Return the row of `work`, or the status of its refusal, so that the other precisions go on."""
    import torch

    try:
        return work()
    except refusals() as error:
        status = refusal(error)  # kept without the error, whose traceback holds the allocated tensors
    torch.cuda.empty_cache()
    return {"part": part, "precision": precision} | status
