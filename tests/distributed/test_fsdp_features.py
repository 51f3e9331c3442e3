"""What may meet in a sharded model: other dtypes, compiled and checkpointed blocks, accumulation, groups, states."""

from functools import partial
from inspect import signature
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint

from cs336_systems.configs import ModelConfig
from cs336_systems.distributed import peer_copies, peers
from cs336_systems.distributed.ddp import NaiveDDP, OverlappedDDP
from cs336_systems.distributed.fsdp import FullyShardedDataParallel
from cs336_systems.linear_cross_entropy import LanguageModelHead
from cs336_systems.optimizer.master_weights import master_weight_adamw
from cs336_systems.transformer import TransformerLM
from tests.distributed.backends import LIKE_GLOO_ON_CUDA
from tests.distributed.drawn import draw
from tests.distributed.models import FEATURES_IN, FEATURES_OUT, Buffered, Toy
from tests.distributed.ranks import IS_PLAIN, ON_NCCL, spawn
from tests.distributed.steps import backward, batch, error_of, finish, gradient_errors, max_error, seeded, train


class Block(nn.Module):
    """Residual block with a norm and two linear layers."""

    def __init__(self, width):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 15), nn.Linear(15, width, bias=False)

    def forward(self, x):
        return x + self.down(self.up(self.norm(x)).relu())


def scaled(layer):
    """Patch a layer to divide its output by the norm of its weight."""
    inner = layer.forward

    def forward(x):
        return inner(x) / layer.weight.norm()

    layer.forward = forward
    return layer


class Linear(nn.Linear):
    """Linear layer of unit rows."""

    def forward(self, x):
        return nn.functional.linear(x, nn.functional.normalize(self.weight))


class Embedding(nn.Embedding):
    """Embedding of unit rows."""

    def forward(self, ids):
        return nn.functional.normalize(self.weight)[ids]


class Blocks(nn.Module):
    """Blocks, each compiled by itself and checkpointed if asked."""

    def __init__(self, compiled=False, checkpointed=False):
        super().__init__()
        self.first, self.last = nn.Linear(FEATURES_IN, 7), nn.Linear(7, FEATURES_OUT)
        self.blocks = nn.ModuleList(Block(7) for _ in range(2))
        self.blocks[1].up.weight.requires_grad_(False)
        self.checkpointed = checkpointed
        for block in self.blocks if compiled else []:
            block.compile(backend="aot_eager", dynamic=False)

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointed else block(x)
        return self.last(x)


def most_gathered(net):
    """Return the largest number of matrices that were whole at once in the last step."""
    whole, most = 0, 0
    for kind, _ in net.events:
        whole += {"gather": 1, "free": -1}.get(kind, 0)
        most = max(most, whole)
    assert whole == 0 and net.events[-1][0] == "average", "each is freed before the end"
    assert not [layer for layer in net.modules() if "weight" in vars(layer)]
    return most


def train_blocks(rank, world_size):
    """Map (how, checkpointed) to the error against one process and the most matrices that were whole."""
    alone, results = train(seeded(Blocks)), {}
    for how in ("by itself", "together", "compiled"):
        for checkpointed in (False, True):
            model = seeded(partial(Blocks, how == "compiled", checkpointed), rank)
            net = FullyShardedDataParallel(model, prefetch=2, together=model.blocks if how == "together" else ())
            train(net, rank, world_size)
            results[how, checkpointed] = max_error(net.state_dict(), alone), most_gathered(net)
    return results


def test_whole_and_checkpointed_blocks_are_right_and_no_more_than_two_layers_ahead_are_whole():
    for results in spawn(train_blocks, 2, 2):
        assert max(error for error, _ in results.values()) < 1e-6
        assert results["by itself", False][1] <= 3
        assert results["by itself", True][1] <= 4, "the layer whose backward waits for the recomputation, too"
        for how in ("together", "compiled"):
            assert max(results[how, True][1], results[how, False][1]) <= 6, "a block has two matrices"


def gather_together(rank):
    """Return the events of a step in which a block is gathered whole, and whether bfloat16 gives the same logits."""
    nets = [seeded(Blocks, rank) for _ in range(2)]
    whole, single = (
        FullyShardedDataParallel(net, torch.bfloat16, together=blocks)
        for net, blocks in zip(nets, (nets[0].blocks, ()), strict=True)
    )
    outputs = [net(batch(0)[0]) for net in (whole, single)]
    for output in outputs:
        output.sum().backward()
    finish(whole), finish(single)
    return whole.events, outputs, [[value.grad for value in net.parameters()] for net in (whole, single)]


def test_matrices_of_a_block_are_gathered_and_averaged_together():
    for events, (output, expected), (gradients, others) in spawn(gather_together, 2):
        kinds = [(kind, name.removesuffix(".weight")) for kind, name in events]
        first = kinds.index(("gather", "blocks.0.up"))
        assert kinds[first + 1] == ("gather", "blocks.0.down")
        assert ("compute", "blocks.0") in kinds and ("compute", "blocks.0.up") not in kinds
        torch.testing.assert_close([output, gradients], [expected, others], rtol=0, atol=0)


class Recomputing(nn.Module):
    """A block that runs its layers again in its backward, which nobody but these sees."""

    def __init__(self, use_reentrant=False):
        super().__init__()
        self.words, self.up = nn.Embedding(9, 4), nn.Linear(5, 4)
        self.down = nn.Linear(4, FEATURES_OUT)
        self.use_reentrant = use_reentrant

    def forward(self, x):
        return self.down(checkpoint(self.inner, x, use_reentrant=self.use_reentrant))

    def inner(self, x):
        torch._dynamo.graph_break()
        return (self.words((x[:, :3].abs() * 20).long() % 9).sum(1) + self.up(x[:, :5])).sin()


def recompute(rank, world_size):
    """Map how a block is gathered to the errors of its gradients."""
    results = {}
    for how in ("by itself", "together", "compiled", "together, reentrant"):
        model, plain = (seeded(partial(Recomputing, how.endswith("reentrant"))) for _ in range(2))
        if how == "compiled":
            model.compile(backend="eager", dynamic=False)
        net = FullyShardedDataParallel(nn.Sequential(model), together=[model] if "together" in how else ())
        for each in (net, plain):
            each(batch(0)[0].requires_grad_()).sin().sum().backward()
            finish(each)
        results[how] = max(gradient_errors(model, plain, rank, world_size).values())
    return results


def test_a_block_that_is_gathered_whole_may_recompute_its_layers():
    for errors in spawn(recompute, 2, 2):
        assert max(errors.values()) < 1e-6, errors


class RecomputingTwice(nn.Module):
    """A block all of whose matrices are in reentrant checkpoints, one of them in two."""

    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(FEATURES_IN, 7), nn.Linear(7, FEATURES_IN)

    def forward(self, x):
        for _ in range(2):
            x = checkpoint(lambda x: self.up(x).sin(), x, use_reentrant=True)
            x = checkpoint(self.down, x, use_reentrant=True)
        return x


def recompute_twice(rank, world_size):
    """Return the norms with blocks gathered whole, with all of it and of one process, and the most whole at once."""

    def build():
        return nn.Sequential(nn.Linear(FEATURES_IN, FEATURES_IN), *(RecomputingTwice() for _ in range(3)))

    models = [seeded(build) for _ in range(3)]
    blocks = FullyShardedDataParallel(models[0], prefetch=0, together=models[0][1:])
    nets = [blocks, FullyShardedDataParallel(models[1], together=[models[1]]), models[2]]
    for net, share in zip(nets, ((rank, world_size), (rank, world_size), (0, 1)), strict=True):
        for _ in range(2):
            net(batch(0, *share)[0].requires_grad_()).square().mean().backward()
            finish(net)
    norms = [getattr(net, "clip_grad_norm_", partial(nn.utils.clip_grad_norm_, net.parameters()))(1.0) for net in nets]
    return norms, most_gathered(blocks)


def test_a_block_that_is_gathered_whole_may_have_several_reentrant_checkpoints():
    for (blocks, whole, alone), most in spawn(recompute_twice, 2, 2):
        torch.testing.assert_close([blocks, whole], [alone, alone])
        assert most <= 4, "of 7: the block's, and those of the one before it"


def train_compiled_wrappers(rank, world_size):
    """Return the errors of models whose wrapper was compiled, without and with compiled blocks inside."""
    alone, errors = train(seeded(Blocks)), []
    for compiled in (False, True):
        net = FullyShardedDataParallel(seeded(partial(Blocks, compiled), rank))
        net.compile(backend="aot_eager", dynamic=False)
        train(net, rank, world_size)
        errors.append(max_error(net.state_dict(), alone))
    return errors


def test_a_wrapper_that_is_compiled_runs_as_it_is():
    assert max(max(errors) for errors in spawn(train_compiled_wrappers, 2, 2)) < 1e-6


def accumulate(rank, world_size):
    """Return the gradients' errors, against one process, after accumulation and clipping."""
    net, plain = FullyShardedDataParallel(seeded(Blocks, rank)), seeded(Blocks)
    for step in range(3):
        net.zero_grad(), plain.zero_grad()
        with torch.inference_mode(step != 1), torch.no_grad():
            net(batch(0)[0])
        for micro in range(3):
            backward(net, *batch(3 * step + micro, rank, world_size))
            backward(plain, *batch(3 * step + micro))
        if step != 1:  # clipping finishes, too
            finish(net), finish(net)
        norms = net.clip_grad_norm_(0.1), nn.utils.clip_grad_norm_(plain.parameters(), 0.1)
        assert norms[0] > 0.1
        torch.testing.assert_close(*norms)
    return gradient_errors(net, plain, rank, world_size)


def test_accumulation_evaluation_a_second_finish_and_clipping_are_those_of_one_process():
    for errors in spawn(accumulate, 2, 2):
        assert max(errors.values()) < 1e-6, errors


def clip_large_gradients(rank):
    """Clip float64 gradients whose squares exceed the range of float32."""
    net, plain = FullyShardedDataParallel(seeded(Blocks).double()), seeded(Blocks).double()
    for model in (net, plain):
        (model(batch(0)[0].double()).sum() * 1e30).backward()
        finish(model)
    norms = net.clip_grad_norm_(0.1), nn.utils.clip_grad_norm_(plain.parameters(), 0.1)
    assert 1e29 < norms[0] < 1e40
    torch.testing.assert_close(*norms)


def test_the_norm_of_float64_gradients_has_their_range():
    spawn(clip_large_gradients, 2)


class Branch(nn.Module):
    """A block with matrices of two dtypes, one of which it leaves out in every other call."""

    def __init__(self):
        super().__init__()
        self.up, self.gate = nn.Linear(FEATURES_IN, 5), nn.Linear(5, 5)
        self.down = nn.Linear(5, FEATURES_OUT, bias=False).double()
        self.leaves_out = False

    def forward(self, x):
        x = self.up(x)
        x = x if self.leaves_out else self.gate(x).sin()
        return self.down(x.double())


def leave_out(rank, world_size):
    """Return the errors of a compiled block's gradients in steps that leave out a matrix, or none."""
    results = []
    block, plain = seeded(Branch, rank), seeded(Branch)
    block.compile(backend="aot_eager", dynamic=False)
    net = FullyShardedDataParallel(block)
    for leaves_out in (False, True, True, False, True):
        block.leaves_out = plain.leaves_out = leaves_out
        x = batch(0)[0]
        for each in (net, plain):
            each.zero_grad()
            each(x).sin().sum().backward()
            finish(each)
        results += gradient_errors(block, plain, rank, world_size).values()
    return results


def test_a_compiled_block_may_leave_out_a_matrix():
    for errors in spawn(leave_out, 2, 2):
        assert max(errors) < 1e-6


def train_in_low_precision(rank, world_size):
    """Return the errors of a bfloat16 model and of master weights, against one process, and what was sent."""
    net = FullyShardedDataParallel(seeded(Blocks, rank), torch.bfloat16)
    wide = FullyShardedDataParallel(seeded(Blocks, rank))
    results = []
    for each in (net, wide):
        inputs, labels = batch(0, rank, world_size)
        nn.functional.mse_loss(each(inputs).float(), labels).backward()
        finish(each)
    results.append(net.traffic.gathered.num_bytes / wide.traffic.gathered.num_bytes)
    results.append(net.traffic.scattered.num_bytes / wide.traffic.scattered.num_bytes)
    pairs = list(zip(net.parameters(), wide.parameters(), strict=True))
    results.append(all(a.grad is None or a.grad.dtype == torch.float32 for a, _ in pairs))
    results.append(max(float((a.grad - b.grad).abs().max()) for a, b in pairs if a.grad is not None and a.numel()))

    nets = [FullyShardedDataParallel(seeded(Blocks, rank)), seeded(Blocks)]
    optimizers = [master_weight_adamw(net, lr=0.01) for net in nets]
    for step in range(3):
        for each, optimizer, share in zip(nets, optimizers, [(rank, world_size), (0, 1)], strict=True):
            optimizer.zero_grad()
            with torch.autocast(torch.get_default_device().type, torch.bfloat16):
                inputs, labels = batch(step, *share)
                loss = nn.functional.mse_loss(each(inputs).float(), labels)
            loss.backward()
            finish(each)
            optimizer.step()
    whole, alone = (net.state_dict() for net in nets)
    assert whole["first.weight"].dtype == torch.bfloat16
    results.append(max(float((whole[name].float() - alone[name].float()).abs().mean()) for name in alone))
    return results


def test_a_compute_dtype_halves_what_is_sent_and_master_weights_work():
    for gathered, scattered, float32, error, master_error in spawn(train_in_low_precision, 2, 2):
        assert (gathered, scattered) == (0.5, 1.0 if IS_PLAIN else 0.5) and float32
        assert 0 < error < 0.05
        assert master_error < 2e-3


def differentiate_in_float32(rank):
    """Return the inputs, whose sum is each row's gradient, and this rank's gradient of a bfloat16 weight."""
    net = FullyShardedDataParallel(seeded(lambda: nn.Linear(16, 12, bias=False)).bfloat16(), torch.float32)
    generator = torch.Generator().manual_seed(rank)
    x = torch.randn(1, 16, generator=generator, device="cpu").to(torch.get_default_device())
    net(x).sum().backward()
    finish(net)
    return x, net.module.weight.grad


@pytest.mark.parametrize("world_size", [2, 3])
def test_float32_gradients_of_a_bfloat16_weight_are_rounded_once(world_size):
    results = spawn(differentiate_in_float32, world_size)
    mean = torch.stack([x.double() for x, _ in results]).mean(0).bfloat16()
    for _, gradient in results:
        assert torch.equal(gradient, mean.expand_as(gradient))


REUSING = {
    "linear": lambda: Linear(FEATURES_IN, 6, bias=False),
    "embedding": lambda: Embedding(5, 6),
    "patched": lambda: scaled(nn.Embedding(5, 6)),
}


def differentiate_alone(rank, world_size):
    """Map each first layer whose weight's gradient depends on its weight to the error against one process."""
    results = {}
    for name, build in REUSING.items():
        net, plain = FullyShardedDataParallel(seeded(lambda build=build: nn.Sequential(build()))), seeded(build)
        x = batch(0)[0] if name == "linear" else torch.tensor([3, 0, 3])
        for each in (net, plain):
            each(x).sin().sum().backward()
            finish(each)
        results[name] = max(gradient_errors(net.module[0], plain, rank, world_size).values())
    return results


@pytest.mark.parametrize("world_size", [1, 2])
def test_a_first_layer_whose_gradient_depends_on_its_weight_has_it_in_the_backward(world_size):
    for results in spawn(differentiate_alone, world_size, world_size):
        assert max(results.values()) < 1e-6, results


class Scalar(nn.Module):
    """Module whose names promise matrices that it has not."""

    class Linear(nn.Module):
        """Gain without dimensions."""

        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.tensor(2.0))

        def forward(self, x):
            return x * self.weight

    class Embedding(nn.Module):
        """Embedding without a weight of its own."""

        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(5, 8)

        def forward(self, ids):
            return self.table(ids)

    def __init__(self):
        super().__init__()
        self.gain, self.embedding = self.Linear(), self.Embedding()

    def forward(self, ids):
        return self.gain(self.embedding(ids))


class Attention(nn.Module):
    """Embedding, torch's own Transformer layer, and its attention without biases."""

    def __init__(self):
        super().__init__()
        self.scalar = Scalar()
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.attention = nn.MultiheadAttention(8, 2, bias=False, batch_first=True)

    def forward(self, ids):
        x = self.layer(self.scalar(ids))
        return self.attention(x, x, x)[0]


def attend(rank, world_size):
    """Return the largest differences of the outputs and gradients of torch's own attention from one process."""
    net, plain = FullyShardedDataParallel(seeded(Attention, rank)), seeded(Attention)
    ids = torch.arange(15).view(3, 5) % 5
    results = []
    for is_training in (True, False):
        with torch.set_grad_enabled(is_training):
            outputs = [each.train(is_training)(ids) for each in (net, plain)]
        results.append(float((outputs[0] - outputs[1]).detach().abs().max()))
        for output in outputs if is_training else []:
            output.sin().sum().backward()
    finish(net)
    return [*results, *gradient_errors(net, plain, rank, world_size).values()]


@pytest.mark.parametrize("world_size", [1, 2])
def test_weights_that_torch_reads_outside_of_their_layer_and_those_that_are_no_matrix_stay_whole(world_size):
    for results in spawn(attend, world_size, world_size):
        assert max(results) < 1e-5, results


EMBEDDINGS = ({"scale_grad_by_freq": True}, {"padding_idx": 1}, {"padding_idx": -1})


def look_up(rank):
    """Return the rows of gradients of embeddings with options, and the whole gradients of this rank's batch alone."""
    ids, results = torch.tensor([[0, 1, 1, 4], [2, 2, 2, 4]])[rank], []
    for options in EMBEDDINGS:
        build = partial(nn.Embedding, 5, 3, **options)
        for net in (FullyShardedDataParallel(seeded(build)), seeded(build)):
            net(ids).square().sum().backward()
            finish(net)
            results.append(next(net.parameters()).grad)
    return results


def test_embeddings_scale_and_pad_the_gradients_of_their_own_batch():
    first, second = spawn(look_up, 2)
    for rows0, rows1, whole0, whole1 in zip(first[::2], second[::2], first[1::2], second[1::2], strict=True):
        torch.testing.assert_close(torch.cat([rows0, rows1]), (whole0 + whole1) / 2)


def save_and_load(rank, world_size):
    """Check every way between whole, sharded and plain states; return the whole state."""
    net = FullyShardedDataParallel(seeded(Buffered, rank))
    whole = net.state_dict()
    seeded(Buffered, 5).load_state_dict(whole)
    for state in (whole, net.sharded_state_dict()):
        other = FullyShardedDataParallel(seeded(Buffered, 7))
        other.load_state_dict(state)
        torch.testing.assert_close(other.state_dict(), whole, rtol=0, atol=0)
    assert "assign=True" in error_of(partial(net.load_state_dict, whole, assign=True))
    return whole


@pytest.mark.parametrize("world_size", [1, 3])
def test_states_are_whole_or_sharded_and_load_into_plain_and_sharded_models(world_size):
    for whole in spawn(save_and_load, world_size, world_size):
        torch.testing.assert_close(whole, seeded(Buffered).state_dict(), rtol=0, atol=0)


def load_the_courses_weights(rank):
    """Return logits of a sharded and of a plain model, both with a state dict that pairs neighbours."""
    net, plain = (seeded(partial(TransformerLM, TINY, 8), seed) for seed in (0, 1))
    course = {name: value for name, value in plain.state_dict().items() if name != "rope_distance"}
    sharded = FullyShardedDataParallel(net)
    for each in (sharded, plain):
        each.load_state_dict(course)
    return [each(torch.arange(8)[None]) for each in (sharded, plain)]


def test_a_whole_checkpoint_of_the_course_loads_into_a_sharded_model():
    for logits, expected in spawn(load_the_courses_weights, 2):
        torch.testing.assert_close(logits, expected, rtol=0, atol=0)


WRAPPERS = FullyShardedDataParallel, NaiveDDP, OverlappedDDP


def written_in_place():
    return nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 5), nn.ReLU(inplace=True), nn.Linear(5, 2))


def write_in_place(rank, world_size):
    """Return the error of a step in which outputs of linear layers are written in place."""
    net, plain = FullyShardedDataParallel(seeded(written_in_place)), seeded(written_in_place)
    x = torch.linspace(-1, 1, 24).view(2, 4, 3)
    for each in (net, plain):
        for _ in range(2):
            each(x).square().sum().backward()
        finish(each)
    return max(gradient_errors(net, plain, rank, world_size).values())


def test_outputs_may_be_written_in_place():
    assert max(spawn(write_in_place, 2, 2)) < 1e-5


def nest(rank):
    """Return what wrappers around wrapped models say, and whether a parent's state loads into a wrapped part."""
    said = [error_of(partial(outer, inner(nn.Linear(4, 4)))) for outer in WRAPPERS for inner in WRAPPERS]
    loaded = []
    for wrapper in WRAPPERS:
        parents = [nn.Sequential(wrapper(seeded(lambda: nn.Linear(4, 4), seed)), nn.BatchNorm1d(4)) for seed in (0, 7)]
        parents[1].load_state_dict(parents[0].state_dict())
        states = [parent.state_dict().values() for parent in parents]
        loaded.append(all(torch.equal(*pair) for pair in zip(*states, strict=True)))
    return said, loaded


def test_a_wrapper_is_refused_around_another_and_loads_as_a_part_of_a_model():
    for said, loaded in spawn(nest, 2):
        assert all("; allowed: " in each for each in said) and all(loaded)


def wrap_without_values(rank):
    models = nn.Sequential(nn.LazyLinear(3)), nn.Linear(4, 3, device="meta"), nn.BatchNorm1d(3, affine=False).to("meta")
    return [error_of(wrapper, model) for wrapper in WRAPPERS for model in models]


def test_a_model_without_values_is_refused():
    for errors in spawn(wrap_without_values, 2):
        assert all("without values; allowed: " in each for each in errors)


def wrap_in_a_group_of_the_first(rank):
    group = dist.new_group([0])
    return [error_of(lambda wrapper=wrapper: wrapper(nn.Linear(4, 3), process_group=group)) for wrapper in WRAPPERS]


def test_a_group_without_this_rank_is_refused():
    first, second = spawn(wrap_in_a_group_of_the_first, 2)
    assert set(first) == {"nothing"}
    assert all("a process_group without this rank was given; allowed: " in each for each in second)


class Scaled(nn.Linear):
    """A linear layer by another name."""


def run_heads_in_low_precision(rank):
    """Return the dtypes of what linear layers, and layers derived from them, make of a norm's float32."""
    heads = nn.Linear(8, 32, bias=False), Scaled(8, 32), LanguageModelHead(8, 32)
    nets = [FullyShardedDataParallel(nn.Sequential(nn.LayerNorm(8), head), torch.bfloat16) for head in heads]
    return [str(net(torch.ones(3, 8)).dtype) for net in nets]


def test_inputs_of_layers_derived_from_linear_ones_are_cast_too():
    assert spawn(run_heads_in_low_precision, 2) == [["torch.bfloat16"] * 3] * 2


NORMS = [
    partial(nn.LayerNorm, 6),
    partial(nn.GroupNorm, 2, 6),
    partial(nn.RMSNorm, 6),
    partial(nn.LayerNorm, 6, elementwise_affine=False),
]


def run_norms(rank):
    """Return errors of norms behind an embedding in bfloat16, the dtypes of their outputs there and alone."""
    results = []
    for make in NORMS:
        embedding, norm = nn.Embedding(5, 6), make()
        net = FullyShardedDataParallel(nn.Sequential(embedding, norm), torch.bfloat16)
        output = net(torch.arange(5))
        output.float().square().sum().backward()
        finish(net)
        assert {value.grad.dtype for value in net.parameters()} == {torch.float32}
        error_of(partial(norm, torch.ones(2, 5, dtype=torch.bfloat16)))
        assert norm.weight is dict(norm.named_parameters()).get("weight"), "the error left a cast weight"
        plain = make().double()
        plain.load_state_dict(norm.state_dict())
        expected = plain(net.state_dict()["0.weight"].bfloat16().double())
        error = float((output - expected).detach().abs().max())
        results.append((error, [output.dtype, norm(torch.ones(2, 6)).dtype, norm(torch.ones(2, 6).double()).dtype]))
    return results


def test_norms_give_the_dtype_of_their_inputs():
    for results in spawn(run_norms, 2):
        for error, dtypes in results:
            assert error < 2e-2 and dtypes == [torch.bfloat16, torch.float32, torch.float64]
        assert len(results) == len(NORMS)


def train_in_pairs(rank):
    """Return the error of the model that this rank's pair trained on its own batches."""
    pair = [dist.new_group([0, 1]), dist.new_group([2, 3])][rank // 2]
    net = FullyShardedDataParallel(seeded(Toy, rank), process_group=pair)
    train(net, rank % 2, 2, first=10 * (rank // 2))
    return max_error(net.state_dict(), train(seeded(Toy, rank // 2 * 2), first=10 * (rank // 2)))


def test_sub_groups_share_models_of_their_own():
    assert max(spawn(train_in_pairs, 4)) < 1e-6


def train_in_groups_of_some(rank):
    """Return the errors of models in groups of which the ranks are in unequal numbers, then in the group of all."""
    dist.new_group([0, 1])
    in_this_order = {"sort_ranks": False} if "sort_ranks" in signature(dist.new_group).parameters else {}  # torch 2.13
    groups = [dist.new_group(ranks, **in_this_order) for ranks in ([0, 1], [2, 1])]
    errors = []
    for group in [*groups, dist.group.WORLD]:
        if (number := dist.get_rank(group)) >= 0:
            net = FullyShardedDataParallel(seeded(Toy), process_group=group)
            train(net, number, dist.get_world_size(group))
            errors.append(max_error(net.state_dict(), train(seeded(Toy))))
    return errors


def test_ranks_of_unequal_numbers_of_groups_share_models():
    errors = spawn(train_in_groups_of_some, 3)
    assert [len(each) for each in errors] == [2, 3, 2] and max(map(max, errors)) < 1e-6


PACKED = [torch.float8_e4m3fn, torch.float8_e5m2, torch.int8, torch.int16, torch.uint16, torch.int32, torch.bool]


class Packed(nn.Linear):
    """Linear layer whose frozen weight is packed, or quantized."""

    def __init__(self, dtype):
        super().__init__(FEATURES_IN, FEATURES_IN)
        self.weight = nn.Parameter((self.weight * 9).to(dtype), requires_grad=False)

    def forward(self, x):
        return nn.functional.linear(x, self.weight.to(x.dtype), self.bias)


def train_packed(rank):
    """Return the largest error of outputs and states of layers with packed weights, alone and gathered together."""
    errors = []
    for dtype in PACKED:
        for is_together in (False, True):
            model, plain = (seeded(lambda dtype=dtype: nn.Sequential(*map(Packed, [dtype] * 2))) for _ in range(2))
            net = FullyShardedDataParallel(model, together=[model] if is_together else ())
            outputs = [each(batch(0)[0]) for each in (net, plain)]
            outputs[0].sum().backward()
            finish(net)
            errors.append(float((outputs[0] - outputs[1]).detach().abs().max()))
            states = zip(net.state_dict().values(), plain.state_dict().values(), strict=True)
            errors += [float((mine.float() - other.float()).abs().max()) for mine, other in states]
    return max(errors)


def test_frozen_weights_of_any_dtype_are_gathered():
    assert max(spawn(train_packed, 2)) < 1e-5


def train_with_plain_collectives(rank, world_size):
    net = FullyShardedDataParallel(draw(3))
    train(net, rank, world_size)
    return max_error(net.state_dict(), train(draw(3)))


def test_a_backend_without_collectives_of_shards_trains_the_same():
    assert max(spawn(train_with_plain_collectives, 3, 3, backend=LIKE_GLOO_ON_CUDA)) < 1e-6


CHECKPOINTS = [("groups", False), ("selective", False), ("nested", False), ("groups", True)]
TINY = ModelConfig(d_model=8, d_ff=12, num_layers=4, num_heads=2, vocab_size=11)


def train_checkpointed(rank, world_size):
    """Map how a Transformer is checkpointed to the error against one process, and the most whole matrices."""
    results = {}
    for mode, offload in CHECKPOINTS:
        build = partial(TransformerLM, TINY, 6, checkpoint_every=2, checkpoint_mode=mode, checkpoint_offload=offload)
        nets = [FullyShardedDataParallel(seeded(build, rank)), seeded(build)]
        ids = torch.arange(4 * 6).view(4, 6) % 11
        for net, mine in zip(nets, (ids.chunk(world_size)[rank], ids), strict=True):
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            for _ in range(3):
                optimizer.zero_grad()
                net(mine).square().mean().backward()
                finish(net)
                optimizer.step()
        error = max_error(*(net.state_dict() for net in nets))
        results[mode, offload] = error, most_gathered(nets[0])
    return results


def test_every_way_to_checkpoint_a_transformer_is_right():
    for results in spawn(train_checkpointed, 2, 2):
        assert max(error for error, _ in results.values()) < 1e-6
        assert max(most for _, most in results.values()) <= 6, "of 30"


def train_some_and_then_all(rank):
    """Train a model in a group of the first two ranks, then one of all; return which used copy engines; its state."""
    pair = dist.new_group([0, 1])
    nets = [FullyShardedDataParallel(seeded(Toy, rank), process_group=pair)] if rank < 2 else []
    nets.append(FullyShardedDataParallel(seeded(Toy, rank)))
    if rank < 2:
        train(nets[0], rank, 2)
    train(nets[-1], rank, 3)
    return [net.uses_copy_engines for net in nets], nets[-1].state_dict()


def test_all_ranks_train_after_some_have():
    alone = train(seeded(Toy))
    for uses, whole in spawn(train_some_and_then_all, 3):
        assert uses[-1] is False, "torch would wait for the last rank's share in the first rendezvous"
        assert uses[0] == (ON_NCCL and len(uses) == 2)
        torch.testing.assert_close(dict(whole), alone, rtol=1e-5, atol=1e-6)


def ask_for_copy_engines(rank):
    """Map each request to its error."""
    return {
        str(requested): error_of(lambda requested=requested: FullyShardedDataParallel(Toy(), copy_engines=requested))
        for requested in (None, False, True, 1, "auto")
    }


def test_copy_engines_are_refused_where_they_cannot_serve():
    for errors in spawn(ask_for_copy_engines, 1) + ([] if ON_NCCL else spawn(ask_for_copy_engines, 2)):
        assert errors["None"] == errors["False"] == "nothing"
        assert errors["True"].startswith("ValueError: copy_engines=True was given, but ")
        for wrong in ("1", "auto"):
            assert "allowed: True, False, None" in errors[wrong]


def share_no_memory_with_rank_1(rank):
    """Return the error of a model that requests copies, and how one that may have them is trained."""

    def refused(*_):
        if rank == 1:
            raise RuntimeError("memory stays here\nin two lines")

    with patch.object(peers, "_why_not", lambda *_: ""), patch.object(peers, "PeerCopies", refused):
        error = error_of(lambda: FullyShardedDataParallel(seeded(Toy), copy_engines=True))
        net = FullyShardedDataParallel(seeded(Toy))
    train(net, rank, 2)
    return error, net.uses_copy_engines, net.state_dict()


def test_collectives_serve_where_a_rank_can_share_no_memory():
    for error, uses, whole in spawn(share_no_memory_with_rank_1, 2):
        assert error == (
            "ValueError: copy_engines=True was given, but memory cannot be shared: memory stays here; "
            "allowed: False or None"
        )
        assert not uses
        torch.testing.assert_close(dict(whole), train(seeded(Toy)), rtol=1e-5, atol=1e-6)


class InFloat32(nn.Module):
    """Blocks whose output is float32, whatever they compute in."""

    def __init__(self):
        super().__init__()
        self.inner = Blocks()

    def forward(self, x):
        return self.inner(x).float()


def move_both_ways(rank, world_size, num_bytes):
    """Map each way to move rows, and compute dtype, to the trained state and the traffic."""
    results, peer_copies.NUM_BYTES = {}, num_bytes
    for copy_engines in (True, False):
        for dtype in (None, torch.bfloat16):
            net = FullyShardedDataParallel(seeded(InFloat32, rank), dtype, prefetch=2, copy_engines=copy_engines)
            assert net.uses_copy_engines == copy_engines
            train(net, rank, world_size, steps=5)
            assert (net.outside_bytes > 0) == copy_engines
            results[copy_engines, dtype] = net.state_dict(), net.traffic
    return results


@pytest.mark.skipif(not ON_NCCL, reason="needs NCCL, for the other way")
@pytest.mark.parametrize("num_bytes", [peer_copies.NUM_BYTES, 2**10], ids=["at_once", "in_pieces"])
@pytest.mark.parametrize("world_size", [2, 4])
def test_copy_engines_move_the_same_rows_as_collectives(world_size, num_bytes):
    alone = train(seeded(InFloat32), steps=5)
    for results in spawn(move_both_ways, world_size, world_size, num_bytes):
        for dtype in (None, torch.bfloat16):
            (copied, traffic), (collected, other_traffic) = results[True, dtype], results[False, dtype]
            assert traffic == other_traffic
            torch.testing.assert_close(copied, collected, rtol=1e-6, atol=1e-6)
        assert max_error(results[True, None][0], alone) < 1e-6
