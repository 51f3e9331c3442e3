"""The fused head and loss against float64 and eager, in every dtype, and whatever autograd asks of it."""

import functools
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.flop_counter import FlopCounterMode
from triton.runtime import JITFunction

from cs336_systems import cross_entropy_kernel as kernels
from cs336_systems import linear_cross_entropy as module
from cs336_systems.linear_cross_entropy import LanguageModelHead, default_chunk_size, linear_cross_entropy

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
CHUNKED = ("pytorch", "triton")


@pytest.fixture(autouse=True)
def poisoned_memory(monkeypatch):
    """Fill new memory with NaN, which stays where nothing is written, and spreads from where it is read."""
    new_empty = torch.Tensor.new_empty

    def poisoned(*args, **kwargs):
        made = new_empty(*args, **kwargs)
        return made.fill_(torch.nan) if made.is_floating_point() else made

    monkeypatch.setattr(torch.Tensor, "new_empty", poisoned)


def operands(tokens, d_model, vocab_size, dtype=torch.float32):
    """Return hidden and weight, which need gradients, and targets, the same in each call; every third is ignored."""
    generator = torch.Generator().manual_seed(tokens + vocab_size)
    hidden, weight = (torch.randn(rows, d_model, generator=generator) for rows in (tokens, vocab_size))
    weight[-1] *= 6  # the largest logit of about half of the rows, in a later block of the kernel than the others'
    targets = torch.randint(vocab_size, (tokens,), generator=generator)
    targets[1::3] = -100
    return *(x.to(DEVICE, dtype).requires_grad_() for x in (hidden, weight)), targets.to(DEVICE)


def answer(loss, hidden, weight, grad_loss=1.0):
    """Return the loss and both gradients, in float64."""
    gradients = torch.autograd.grad(loss * grad_loss, (hidden, weight))
    return [x.detach().double() for x in (loss, *gradients)]


def exact_answer(hidden, weight, targets, grad_loss=1.0):
    hidden, weight = (x.detach().double().requires_grad_() for x in (hidden, weight))
    return answer(F.cross_entropy(hidden @ weight.T, targets), hidden, weight, grad_loss)


def errors(results, exact):
    return [float((ours - true).norm() / true.norm()) for ours, true in zip(results, exact, strict=True)]


def slopes(results, exact):
    return [float((ours * true).sum() / true.square().sum()) for ours, true in zip(results, exact, strict=True)]


@pytest.mark.parametrize(
    ("dtype", "impl"),
    [
        (torch.float64, "pytorch"),
        *((dtype, impl) for dtype in (torch.float32, torch.float16) for impl in CHUNKED),
        (torch.bfloat16, "pytorch"),
        pytest.param(torch.bfloat16, "triton", marks=pytest.mark.gpu),  # Triton's interpreter truncates
    ],
)
@pytest.mark.parametrize(
    ("tokens", "d_model", "vocab_size", "chunk_size"), [(37, 24, 259, 8), (50, 16, 50, 7), (4, 16, 4099, None)]
)
def test_it_is_as_exact_as_eager(dtype, impl, tokens, d_model, vocab_size, chunk_size):
    hidden, weight, targets = operands(tokens, d_model, vocab_size, dtype)
    exact = exact_answer(hidden, weight, targets, 3.0)
    ours = answer(linear_cross_entropy(hidden, weight, targets, impl=impl, chunk_size=chunk_size), hidden, weight, 3.0)
    eager = answer(linear_cross_entropy(hidden, weight, targets, impl="reference"), hidden, weight, 3.0)
    rounding = 64 * torch.finfo(torch.promote_types(dtype, torch.float32)).eps
    for error, of_eager in zip(errors(ours, exact), errors(eager, exact), strict=True):
        assert error <= 2 * of_eager + rounding
    for slope, of_eager in zip(slopes(ours, exact), slopes(eager, exact), strict=True):
        assert abs(slope - 1) <= abs(of_eager - 1) + 1e-3


def test_many_chunks_are_as_exact_as_one():
    hidden, weight, targets = operands(300, 16, 8, torch.bfloat16)
    exact = exact_answer(hidden, weight, targets)
    many, one = (
        errors(answer(linear_cross_entropy(hidden, weight, targets, chunk_size=rows), hidden, weight), exact)
        for rows in (1, 300)
    )
    assert all(error <= 1.1 * of_one for error, of_one in zip(many, one, strict=True))


@pytest.mark.parametrize("impl", CHUNKED)
def test_without_a_target_that_counts_it_is_what_torch_makes_of_it(impl):
    for tokens in (3, 0):
        hidden, weight, targets = operands(tokens, 16, 20)
        loss = linear_cross_entropy(hidden, weight, targets.fill_(-100), impl=impl)
        assert loss.isnan()
        assert all((gradient == 0).all() for gradient in torch.autograd.grad(loss, (hidden, weight)))


@pytest.mark.parametrize("impl", CHUNKED)
def test_any_token_can_be_the_ignored_one(impl):
    hidden, weight, targets = operands(9, 16, 20)
    targets[:] = torch.arange(9) % 4
    ours = answer(linear_cross_entropy(hidden, weight, targets, ignore_index=2, impl=impl), hidden, weight)
    torch.testing.assert_close(
        ours, exact_answer(hidden, weight, targets.where(targets != 2, -100)), rtol=1e-6, atol=1e-6
    )


@pytest.mark.parametrize("impl", CHUNKED)
def test_targets_may_have_any_strides(impl):
    hidden, weight, targets = operands(6, 16, 20)
    expected = linear_cross_entropy(hidden, weight, targets, impl="reference")
    inside = torch.stack([targets.flip(0), targets], 1)[:, 1]  # the last token of each row
    torch.testing.assert_close(linear_cross_entropy(hidden, weight, inside, impl=impl), expected)
    same = targets[:1].expand(6)
    expected = linear_cross_entropy(hidden, weight, same, impl="reference")
    torch.testing.assert_close(linear_cross_entropy(hidden, weight, same, impl=impl), expected)


@pytest.mark.parametrize("impl", CHUNKED)
def test_infinite_logits_are_those_of_torch(impl):
    """A first block of -inf has no maximum; a row of +inf or NaN has no loss."""
    hidden = torch.eye(3, 16, device=DEVICE)
    weight = torch.zeros(4099, 16, device=DEVICE)
    weight[:4097, 0], weight[5, 1], weight[7, 2] = -torch.inf, torch.inf, torch.nan
    for row in range(3):
        mine = hidden[row : row + 1].where(hidden[row : row + 1] != 0, 1e-30)  # inf * 0 is NaN
        targets = torch.tensor([4098], device=DEVICE)
        expected = F.cross_entropy(mine @ weight.T, targets)
        torch.testing.assert_close(linear_cross_entropy(mine, weight, targets, impl=impl), expected, equal_nan=True)


def test_a_target_outside_the_vocabulary_is_no_loss():
    hidden, weight, targets = operands(4, 16, 20)
    for wrong in (20, -1):
        targets[0] = wrong
        assert linear_cross_entropy(hidden, weight, targets, impl="triton").isnan()
        if DEVICE == "cpu":  # on a GPU torch's assertion ends the process
            with pytest.raises((IndexError, RuntimeError), match="out of bounds"):
                linear_cross_entropy(hidden, weight, targets, impl="pytorch")


def test_only_the_gradients_that_are_needed_are_formed(monkeypatch):
    hidden, weight, targets = operands(9, 16, 20)
    loss, exact, _ = exact_answer(hidden, weight, targets)

    def refuse(*_):
        raise AssertionError("the gradient of the weight was formed")

    monkeypatch.setattr(module, "_add_product", refuse)
    frozen = linear_cross_entropy(hidden, weight.detach(), targets)
    torch.testing.assert_close(torch.autograd.grad(frozen, hidden)[0].double(), exact, rtol=0, atol=1e-6)
    with torch.no_grad():
        assert not linear_cross_entropy(hidden, weight, targets).requires_grad
    monkeypatch.undo()
    of_the_weight = linear_cross_entropy(hidden.detach(), weight, targets)
    torch.testing.assert_close(of_the_weight.detach().double(), loss, rtol=1e-6, atol=0)
    of_the_weight.backward()
    assert hidden.grad is None
    assert weight.grad is not None


@pytest.mark.parametrize("needed", [(False, False), (True, False), (False, True), (True, True)])
def test_flops_are_those_of_eager_s_products(needed):
    hidden, weight = (torch.randn(n, 5).requires_grad_(is_needed) for n, is_needed in zip((7, 11), needed, strict=True))
    counts = []
    for impl in ("pytorch", "reference"):
        with FlopCounterMode(display=False) as counter:
            loss = linear_cross_entropy(hidden, weight, torch.arange(7), impl=impl)
            if any(needed):
                loss.backward()
        counts.append(counter.get_total_flops())
    assert counts[0] == counts[1] == 2 * 7 * 5 * 11 * (1 + sum(needed))


def test_a_second_backward_and_accumulated_gradients_are_right():
    hidden, weight, targets = operands(9, 16, 20)
    _, grad_hidden, grad_weight = exact_answer(hidden, weight, targets)
    loss = linear_cross_entropy(hidden, weight, targets)
    (2 * loss).backward(retain_graph=True)
    (loss + linear_cross_entropy(hidden, weight, targets)).backward()
    torch.testing.assert_close(hidden.grad.double(), 4 * grad_hidden, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(weight.grad.double(), 4 * grad_weight, rtol=1e-5, atol=1e-6)
    with pytest.raises(RuntimeError, match="differentiated once"):
        torch.autograd.grad(linear_cross_entropy(hidden, weight, targets), hidden, create_graph=True)


@pytest.mark.parametrize("weight_dtype", [torch.float32, torch.bfloat16])
def test_autocast_casts_the_operands_and_keeps_float32_gradients(weight_dtype):
    hidden, weight, targets = operands(37, 24, 259)
    weight = weight.detach().to(weight_dtype).requires_grad_()
    exact = exact_answer(hidden, weight, targets)
    found = {}
    for impl in ("pytorch", "reference"):
        with torch.autocast(DEVICE, torch.bfloat16):
            found[impl] = linear_cross_entropy(hidden, weight, targets, impl=impl, chunk_size=8)
        found[impl].backward(inputs=(hidden, weight), retain_graph=True)
        assert found[impl].dtype == hidden.grad.dtype == torch.float32
        assert weight.grad.dtype == weight_dtype
        found[impl] = errors(answer(found[impl], hidden, weight), exact)
    assert all(ours <= 2 * eager for ours, eager in zip(*found.values(), strict=True))


def test_small_probabilities_survive_in_float16():
    """1 / (tokens * vocab_size) is below float16's smallest number, whatever the loss is multiplied with later."""
    hidden, weight, targets = operands(600, 16, 2000, torch.float16)
    hidden, weight = ((x.detach() / 16).requires_grad_() for x in (hidden, weight))
    ours = answer(linear_cross_entropy(hidden, weight, targets), hidden, weight, 2.0**16)
    assert max(errors(ours, exact_answer(hidden, weight, targets, 2.0**16))) < 2e-3


@pytest.mark.parametrize("impl", CHUNKED)
def test_a_product_of_many_rows_does_not_overflow_in_float16(impl):
    hidden = torch.full((1024, 16), 90.0, dtype=torch.float16, device=DEVICE)
    weight = torch.zeros(16, 16, dtype=torch.float16, device=DEVICE, requires_grad=True)
    targets = torch.zeros(1024, dtype=torch.long, device=DEVICE)
    linear_cross_entropy(hidden, weight, targets, impl=impl, chunk_size=1024).backward()
    torch.testing.assert_close(weight.grad[0].cpu(), torch.full((16,), -90.0 * 15 / 16).half(), rtol=2e-3, atol=0)


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # raised by torch's tracing
def test_the_head_is_one_operator_of_a_compiled_graph():
    torch.manual_seed(0)
    layers, head = nn.Linear(16, 16, device=DEVICE), LanguageModelHead(16, 33).to(DEVICE)
    x, targets = torch.randn(2, 5, 16, device=DEVICE), torch.randint(33, (2, 5), device=DEVICE)
    parameters = [*layers.parameters(), *head.parameters()]

    def loss_of(x, targets):
        return head(layers(x), targets) * 2

    expected = F.cross_entropy(head(layers(x)).flatten(0, 1), targets.flatten()) * 2
    compiled = torch.compile(loss_of, fullgraph=True, backend="aot_eager")(x, targets)
    torch.testing.assert_close(compiled, expected)
    ours, theirs = (torch.autograd.grad(loss, parameters) for loss in (compiled, expected))
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def test_threads_at_once_get_the_losses_of_one():
    """Of Triton too: its interpreter by itself runs one kernel at a time."""
    hidden, weight, targets = operands(60, 16, 5000)
    expected = answer(linear_cross_entropy(hidden, weight, targets, impl="pytorch"), hidden, weight)
    ready = threading.Barrier(4)

    def call(impl):
        ready.wait()
        return answer(linear_cross_entropy(hidden, weight, targets, impl=impl), hidden, weight)

    with ThreadPoolExecutor(4) as threads:
        for found in threads.map(call, ["triton", "triton", "pytorch", "triton"]):
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_a_chunk_is_whole_waves_of_at_least_d_model_rows(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(multi_processor_count=132))
    found = {d_model: default_chunk_size(d_model, torch.device("cuda")) for d_model in (1, 768, 1600, 2560, 4096)}
    assert found == {1: 132 * 128, 768: 44 * 128, 1600: 18 * 128, 2560: 2 * 13 * 128, 4096: 4 * 8 * 128}


@pytest.mark.parametrize(
    ("dtype", "tokens", "rows"),
    [
        (torch.bfloat16, 144, [144]),
        (torch.bfloat16, 145, [128, 17]),
        (torch.float16, 144, [128, 16]),  # its gradient of the weight is float32 until the backward scales it
        (torch.float32, 144, [128, 16]),
    ],
)
def test_one_chunk_may_take_the_memory_of_the_sum_that_it_saves(dtype, tokens, rows, monkeypatch):
    hidden, weight, targets = operands(tokens, 16, 20, dtype)
    found, cross_entropy = [], module.cross_entropy_

    def counted(logits, *rest):
        found.append(len(logits))
        cross_entropy(logits, *rest)

    monkeypatch.setattr(module, "cross_entropy_", counted)
    monkeypatch.setattr(module, "default_chunk_size", lambda *_: 128)
    linear_cross_entropy(hidden, weight, targets, impl="pytorch")
    assert found == rows
    found.clear()
    linear_cross_entropy(hidden, weight.detach(), targets, impl="pytorch")  # no sum, so nothing is saved
    assert found == [128, tokens - 128]


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # raised by torch's tracing
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True)
def test_a_compiled_graph_may_leave_the_number_of_tokens_open(dtype):
    def loss_of(hidden, weight, targets):
        kept = (targets != -100).nonzero().squeeze(1)
        return linear_cross_entropy(hidden[kept], weight, targets[kept], impl="pytorch")

    every = functools.partial(linear_cross_entropy, impl="pytorch")
    for function, sizes in ((loss_of, (9,)), (every, (9, 100, 300))):
        compiled = torch.compile(function, fullgraph=True, backend="aot_eager", dynamic=True)
        for tokens in sizes:
            hidden, weight, targets = operands(tokens, 16, 20, dtype)
            found = answer(compiled(hidden, weight, targets), hidden, weight)
            expected = answer(function(hidden, weight, targets), hidden, weight)
            rounding = 4 * torch.finfo(dtype).eps
            assert max(errors(found, expected)) < rounding


class Head(nn.Module):
    def __init__(self, weight):
        super().__init__()
        self.weight = nn.Parameter(weight.detach())

    def forward(self, hidden, targets):
        return linear_cross_entropy(hidden, self.weight, targets, impl="pytorch")


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.parametrize("how", ["exported", "compiled"])
def test_a_graph_for_a_range_of_sizes_takes_them_all(how):
    hidden, weight, targets = operands(100, 16, 20, torch.bfloat16)
    head = Head(weight)
    if how == "exported":
        rows = {0: torch.export.Dim("rows", min=2, max=1000)}
        graph = torch.export.export(head, (hidden.detach(), targets), dynamic_shapes=(rows, rows)).module()
    else:
        graph = torch.compile(head, fullgraph=True, backend="aot_eager")
        for each in (hidden, targets):
            torch._dynamo.mark_dynamic(each, 0, min=2, max=1000)
        graph(hidden, targets)
    hidden, _, targets = operands(300, 16, 20, torch.bfloat16)  # more than one chunk takes
    torch.testing.assert_close(graph(hidden, targets), head(hidden, targets), rtol=0, atol=0)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_what_cannot_run_is_refused():
    hidden, weight, targets = operands(4, 16, 20)
    eighth = (hidden.to(torch.float8_e4m3fn), weight.to(torch.float8_e4m3fn))
    for arguments, options, allowed in (
        ((hidden, weight, targets), {"impl": "fast"}, "allowed: auto, reference"),
        *(
            ((hidden, weight, targets), {"chunk_size": wrong}, f"chunk_size is {wrong!r}; allowed: None, or an int of")
            for wrong in (0, True, 2.0, "8")
        ),
        *(
            (
                (hidden, weight, targets),
                {"ignore_index": wrong, "impl": impl},
                f"ignore_index is {wrong!r}; allowed: an int",
            )
            for wrong in (True, -100.0, "a", None, 2**63)
            for impl in CHUNKED
        ),
        ((hidden, weight.to_sparse(), targets), {}, "weight is torch.sparse_coo; allowed: a dense tensor"),
        ((torch.nested.nested_tensor([hidden[0]]), weight, targets), {}, "hidden is nested; allowed: a dense tensor"),
        ((hidden, weight.T, targets), {}, "allowed: .*vocab_size, d_model"),
        ((hidden, weight, targets[:3]), {}, "allowed: .*vocab_size, d_model"),
        ((hidden[:, :0], weight[:, :0], targets), {}, "of at least 1 each"),
        ((hidden, weight.double(), targets), {}, "allowed: torch.float64, .*, one for both"),
        ((*eighth, targets), {}, "have dtypes torch.float8_e4m3fn, .*; allowed: torch.float64, "),
        ((hidden, weight, targets.int()), {}, "and int64"),
        ((hidden, weight.to("meta"), targets), {}, "allowed: one device"),
        ((hidden.double(), weight.double(), targets), {"impl": "triton"}, "allowed for impl='triton'"),
    ):
        with pytest.raises(ValueError, match=allowed):
            linear_cross_entropy(*arguments, **options)
    with pytest.raises(ValueError, match="d_model=0 was given; allowed: an int of at least 1"):
        LanguageModelHead(0, 20)


def test_triton_is_refused_on_the_cpu_without_its_interpreter(monkeypatch):
    compiled = JITFunction(kernels.cross_entropy_kernel.fn)
    monkeypatch.setattr(kernels, "cross_entropy_kernel", compiled)
    for rows in (0, 4):
        operands_ = [x.cpu() for x in operands(rows, 16, 20)]
        with pytest.raises(
            ValueError, match="hidden is on cpu; allowed for Triton: CUDA, or the CPU with TRITON_INTERP"
        ):
            linear_cross_entropy(*operands_, impl="triton")


@pytest.mark.gpu
def test_the_largest_vocabulary_holds_a_chunk_of_logits():
    tokens, d_model, vocab_size = 8192, 4096, 151_936
    hidden, weight, targets = operands(tokens, d_model, vocab_size, torch.bfloat16)
    with torch.no_grad():
        weight.mul_(d_model**-0.5)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    loss = linear_cross_entropy(hidden, weight, targets)
    rows = default_chunk_size(d_model, hidden.device)
    held = 2 * rows * vocab_size + 4 * vocab_size * d_model + 2 * tokens * d_model
    assert torch.cuda.max_memory_allocated() - before < held + 2**26  # cuBLAS's workspace
    assert all(x.isfinite().all() for x in answer(loss, hidden, weight))
    del loss
    some = hidden[:1024].detach().requires_grad_(), weight, targets[:1024]  # float64 logits of all would not fit
    exact = exact_answer(*some)
    ours, eager = (
        errors(answer(linear_cross_entropy(*some, impl=impl), *some[:2]), exact) for impl in ("triton", "reference")
    )
    assert all(mine <= 2 * its for mine, its in zip(ours, eager, strict=True))
