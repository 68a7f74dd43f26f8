"""Gradients of several ranks against one process, and the ring against its definition."""

import math

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("skorch")
pytest.importorskip("psutil")

from tests.deep import rank_toys as toys  # noqa: E402

SIZE = len(toys.COUNTS)


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return toys.run_ranks(toys.everything, SIZE, tmp_path_factory.mktemp("ranks"))


def one_process(name, params):
    module, loss = toys.Net(), toys.loss_of(name, params)
    embeddings = module(toys.make_rows())
    torch.manual_seed(toys.SEED + 1)  # as the first step of all ranks
    value = loss(embeddings, toys.LABELS)
    value.backward()
    learned = loss.parameters() if isinstance(loss, torch.nn.Module) else []
    return value.item(), [p.grad for p in (*module.parameters(), *learned)]


@pytest.mark.parametrize("title", toys.settings())
def test_ranks_have_the_gradient_of_one_process_with_all_rows(found, title):
    value, grads = one_process(*toys.settings()[title])
    assert any(grad.abs().max() > 0 for grad in grads)
    for rank in range(SIZE):
        own_value, own_grads = found[rank]["gradients"][title, True]
        assert own_value == pytest.approx(value, rel=1e-9)
        for own, expected in zip(own_grads, grads, strict=True):
            torch.testing.assert_close(own, expected, rtol=0, atol=1e-6 * expected.abs().max())


# With remote_grad=False: the terms of a rank's own anchors, with the rows of others as constants.


def anchor_terms(title, embeddings, labels):
    """The loss as a sum over anchors, written out."""
    units = embeddings / embeddings.norm(dim=1, keepdim=True)
    S, size = units @ units.T, len(labels)
    terms = [S.new_zeros(()) for _ in range(size)]
    pairs = [(i, j, bool(labels[i] == labels[j])) for i in range(size) for j in range(size)]
    pairs = [pair for pair in pairs if pair[0] != pair[1]]

    def pair_loss(i, j, same):
        return (0.2 + (0.5 - S[i, j]) * (1 if same else -1)).clamp_min(0)

    if title == "margin":
        for i, j, same in pairs:
            terms[i] = terms[i] + pair_loss(i, j, same) / len(pairs)
    if title == "multi-similarity":
        for anchor in range(size):
            for sign, scale in ((True, -2.0), (False, 50.0)):
                others = [j for i, j, same in pairs if i == anchor and same == sign]
                total = sum(torch.exp(scale * (S[anchor, j] - 0.5)) for j in others)
                terms[anchor] = terms[anchor] + torch.log1p(total) / abs(scale) / size
    if title == "triplet hard":
        distances = (2 - 2 * S).clamp_min(1e-300).sqrt()
        for anchor in range(size):
            far = max(distances[i, j] for i, j, same in pairs if i == anchor and same)
            near = min(distances[i, j] for i, j, same in pairs if i == anchor and not same)
            terms[anchor] = (far - near + 0.2).clamp_min(0) / size
    if title == "dro-topk of 5":
        # A pair is of both its ends, with one half each.
        worst = sorted((p for p in pairs if p[0] < p[1]), key=lambda p: -pair_loss(*p))[:5]
        for i, j, same in worst:
            for end in (i, j):
                terms[end] = terms[end] + pair_loss(i, j, same) / 10
    return terms


@pytest.mark.parametrize("title", ["margin", "multi-similarity", "triplet hard", "dro-topk of 5"])
def test_own_anchors_only_without_remote_gradients(found, title):
    total = None
    for rank in range(SIZE):
        module, own = toys.Net(), toys.own_rows(rank)
        embeddings = module(toys.make_rows())
        mask = torch.zeros(len(embeddings), 1)
        mask[own] = 1
        embeddings = torch.where(mask > 0, embeddings, embeddings.detach())
        sum(anchor_terms(title, embeddings, toys.LABELS)[own]).backward()
        grads = [p.grad for p in module.parameters()]
        total = grads if total is None else [a + b for a, b in zip(total, grads, strict=True)]
    value, _ = one_process(*toys.settings()[title])
    for rank in range(SIZE):
        own_value, own_grads = found[rank]["gradients"][title, False]
        assert own_value == pytest.approx(value, rel=1e-9)
        for own, expected in zip(own_grads, total, strict=True):
            torch.testing.assert_close(own, expected, rtol=0, atol=1e-6 * expected.abs().max())


def test_remote_gradients_matter_for_anchors_only(found):
    grads = found[0]["gradients"]
    for title, is_same in (("multi-similarity", False), ("spectral", True), ("histogram", False)):
        near = [
            torch.allclose(a, b)
            for a, b in zip(grads[title, True][1], grads[title, False][1], strict=True)
        ]
        assert all(near) == is_same


# The ring


def simulate(ring, mix):
    """All ranks in one process, step by step, as the definition has it."""
    modules = [toys.Net(batch_norm=True) for _ in range(SIZE)]
    for step in range(toys.STEPS):
        sent = [
            {name: value.clone() for name, value in module.state_dict().items()}
            for module in modules
        ]
        for rank, module in enumerate(modules):
            module.zero_grad()
            toys.toy_loss(module(toys.toy_rows(rank, step)), rank).backward()
        grads = [{n: p.grad.clone() for n, p in m.named_parameters()} for m in modules]
        after = [{n: b.clone() for n, b in m.named_buffers()} for m in modules]
        with torch.no_grad():
            for rank, module in enumerate(modules):
                left = rank - 1
                for name, parameter in module.named_parameters():
                    grad = grads[rank][name]
                    if name.startswith("head"):
                        grad = sum(own[name] for own in grads) / SIZE
                    elif ring == "gradients":
                        grad = mix * grad + (1 - mix) * grads[left][name]
                    else:
                        parameter.copy_(mix * parameter + (1 - mix) * sent[left][name])
                    parameter -= 0.1 * grad
                for name, buffer in module.named_buffers():
                    if buffer.is_floating_point():
                        other = after[left] if ring == "gradients" else sent[left]
                        buffer.copy_(mix * after[rank][name] + (1 - mix) * other[name])
    return [module.state_dict() for module in modules]


@pytest.mark.parametrize("ring", ["parameters", "gradients"])
def test_hybrid_steps_are_those_of_the_definition(found, ring):
    expected = simulate(ring, 0.3)
    for rank in range(SIZE):
        states = found[rank]["hybrid_steps"][ring][0]
        assert states.keys() == expected[rank].keys()
        for name, value in states.items():
            torch.testing.assert_close(value, expected[rank][name], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("ring", ["parameters", "gradients"])
def test_the_head_is_the_same_everywhere_and_the_end_is_the_average(found, ring):
    states = [found[rank]["hybrid_steps"][ring] for rank in range(SIZE)]
    distances = []
    for rank in range(SIZE):
        own, apart, final, _ = states[rank]
        assert torch.equal(own["head.weight"], states[0][0]["head.weight"])
        left = states[rank - 1][0]
        distances.append(
            sum(
                (own[name] - left[name]).square().sum()
                for name in ("backbone.0.weight", "backbone.0.bias", "backbone.1.weight")
            )
            + (own["backbone.1.bias"] - left["backbone.1.bias"]).square().sum()
        )
        assert apart == pytest.approx(states[0][1])
        for name, value in final.items():
            torch.testing.assert_close(
                value.double(), sum(state[0][name].double() for state in states) / SIZE
            )
            assert torch.equal(value, states[0][2][name])
    assert states[0][1] == pytest.approx(sum(math.sqrt(d) for d in distances) / SIZE)
    assert states[0][1] > 0


def test_backbones_agree_with_parameters_in_the_ring_but_not_with_gradients(found):
    together, apart = (found[0]["consensus"][ring] for ring in ("parameters", "gradients"))
    assert together[-1] < 0.01 * max(together)
    assert together[-1] < 0.01 * apart[-1]
    assert apart[-1] > apart[0]


def test_compressed_gradients_are_near_those_of_all_reduce_in_fewer_bytes(found):
    plain, n_plain, _ = found[0]["compressed"][None]
    for compression, most_bytes, most_error in [("fp16", 0.55, 1e-3), ("powersgd", 0.3, 0.05)]:
        weights, n_bytes, again = found[0]["compressed"][compression]
        for rank in range(1, SIZE):
            assert torch.equal(found[rank]["compressed"][compression][0], weights)
        error = torch.linalg.vector_norm(weights - plain) / torch.linalg.vector_norm(plain)
        assert 0 < error < most_error
        assert torch.equal(again, weights)  # from a checkpoint on
        if not math.isnan(n_plain):
            assert n_bytes < most_bytes * n_plain


# A fit


def test_every_rank_ends_a_fit_with_the_same_network_and_the_loss_of_all(found):
    for title in toys.PLANS:
        weights, loss, _ = found[0]["plans"][title]
        for rank in range(1, SIZE):
            assert torch.equal(found[rank]["plans"][title][0], weights)
            assert found[rank]["plans"][title][1] == pytest.approx(loss, rel=1e-6)


def test_every_parameter_of_a_distributed_fit_has_an_effect(found):
    weights = {title: plan[0] for title, plan in found[0]["plans"].items()}
    for title in toys.PLANS:
        for other in toys.PLANS:
            same = torch.allclose(weights[title], weights[other], rtol=0, atol=1e-5)
            assert same == (title == other), (title, other)


def test_replicas_are_as_far_apart_as_sync_and_ring_mix_say(found):
    apart = {title: plan[2] for title, plan in found[0]["plans"].items()}
    assert apart["allreduce"] == apart["allreduce, constants"] == 0
    assert 0 < 2 * apart["hybrid"] < apart["no mixing"]
    assert 0 < 2 * apart["hybrid"] < apart["gradients"]
    assert 0 < apart["from outside"] < apart["no mixing"]


def test_bytes_are_those_of_one_send_per_parameter_and_of_an_all_reduce(found):
    sent = found[0]["hybrid_steps"]["parameters"][3]
    if sent["backbone"] is None:
        pytest.skip("this system does not count the bytes of a socket")
    n_ring = 5 * 6 + 5 + 4 * 5  # weights, biases, and batch norm's four vectors
    n_head = 4 * 5 + 4
    # Every message has a header, and these are small.
    assert 8 * n_ring * toys.STEPS <= sent["backbone"] <= 8 * n_ring * toys.STEPS + 200 * toys.STEPS
    least = 8 * n_head * toys.STEPS * 2 * (SIZE - 1) / SIZE
    assert 0.9 * least <= sent["head"] <= least + 1500 * toys.STEPS
