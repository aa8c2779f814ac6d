// SPDX-License-Identifier: Apache-2.0
//
// The code that five pages of docs/ show, between marks that name the page; docs_test.sh keeps
// them the same. Each function trains a small Llama. Argument: a directory for a checkpoint.
#include <iostream>
#include <numeric>
#include <string>

#include "shardmesh/shardmesh.h"

using namespace shardmesh;

namespace {

const models::LlamaConfig kConfig = {.vocab_size = 256,
                                     .hidden_size = 64,
                                     .intermediate_size = 192,
                                     .num_hidden_layers = 2,
                                     .num_attention_heads = 4,
                                     .num_key_value_heads = 2,
                                     .tie_word_embeddings = true};

/// Ids [8, 33], rows split over all axes but tp.
DTensor MakeBatch(const DeviceMesh& mesh) {
  std::vector<int64_t> bytes(8 * 33);
  std::iota(bytes.begin(), bytes.end(), -4);
  for (int64_t& byte : bytes) byte = byte * byte % 251;
  std::vector<Placement> placements;
  for (const MeshAxis& axis : mesh.shape().axes())
    placements.push_back(axis.name == "tp" ? Replicate() : Shard(0));
  return Distribute(mesh, Tensor::FromValues<int64_t>(mesh.context(), {8, 33}, bytes), placements);
}

DTensor InputsOf(const DTensor& batch) { return Slice(batch, /*dim=*/1, 0, 32); }
DTensor TargetsOf(const DTensor& batch) { return Slice(batch, /*dim=*/1, 1, 32); }

/// "tp step 3 loss 4.2", once.
void Print(const std::string& name, int step, const DTensor& loss) {
  const double value = Item(loss);
  if (loss.mesh().WorldGroup().rank() == 0)
    std::cout << name << " step " << step << " loss " << value << "\n";
}

void TrainFullyShard(const DeviceMesh& mesh) {
  const DTensor batch = MakeBatch(mesh);
  models::Llama model(kConfig);
  // docs/fsdp.md begin
  for (auto& block : model.Blocks()) fsdp::FullyShard(block, mesh);
  fsdp::FullyShard(model, mesh);  // The root unit: the rest.
  model.Initialize(/*seed=*/1);
  optim::AdamW optimizer(model.Parameters(), {.lr = 3e-3});
  for (int step = 0; step < 20; ++step) {
    DTensor loss = nn::CrossEntropy(model(InputsOf(batch)), TargetsOf(batch));
    Backward(loss);  // The loss of the global batch.
    optim::ClipGradNorm(model.Parameters(), /*max_norm=*/1.0);
    optimizer.Step();  // Applies and clears the gradients.
    Print("fsdp", step, loss);
  }
  // docs/fsdp.md end
}

void TrainInF16(const DeviceMesh& mesh) {
  const DTensor batch = MakeBatch(mesh);
  models::Llama model(kConfig);
  // docs/fsdp.md begin
  const fsdp::FullyShardOptions f16 = {.mixed_precision = {.param_dtype = DType::kF16}};
  for (auto& block : model.Blocks()) fsdp::FullyShard(block, mesh, f16);
  fsdp::FullyShard(model, mesh, f16);
  model.Initialize(/*seed=*/1);
  optim::AdamW optimizer(model.Parameters(), {.lr = 3e-3});  // The parameters are f32.
  optim::GradScaler scaler;
  for (int step = 0; step < 20; ++step) {
    DTensor loss = nn::CrossEntropy(model(InputsOf(batch)), TargetsOf(batch));
    Backward(scaler.Scale(loss));
    scaler.Unscale(model.Parameters());  // Only because gradients are clipped.
    optim::ClipGradNorm(model.Parameters(), /*max_norm=*/1.0);
    scaler.Step(optimizer);  // Nothing, on all ranks, if a gradient is inf or nan on one.
    scaler.Update();
    Print("f16", step, loss);
  }
  // docs/fsdp.md end
}

void TrainInGroups(const DeviceMesh& mesh) {
  const DTensor batch = MakeBatch(mesh);
  models::Llama model(kConfig);
  for (auto& block : model.Blocks()) fsdp::FullyShard(block, mesh);
  fsdp::FullyShard(model, mesh);
  model.Initialize(/*seed=*/1);
  // docs/optimizers.md begin
  optim::AdamW optimizer(
      model.Parameters(), {.lr = 6e-3, .weight_decay = 0.1},
      {{.parameters = optim::IsNormOrBias, .change = [](auto& o) { o.weight_decay = 0; }},
       {.parameters = "model.embed_tokens.*", .change = [](auto& o) { o.beta2 = 0.95; }}});
  optim::LrScheduler scheduler(optimizer, optim::CosineSchedule{.total_steps = 100});
  optim::Ema ema(model.Parameters());
  for (int step = 0; step < 20; ++step) {
    DTensor loss = nn::CrossEntropy(model(InputsOf(batch)), TargetsOf(batch));
    Backward(loss);
    optim::ClipGradNorm(optimizer.parameters(), /*max_norm=*/1.0);
    optimizer.Step();  // Applies and clears the gradients.
    scheduler.Step();  // The rates of the next step.
    ema.Update(/*decay=*/0.5);
    Print("groups", step, loss);
  }
  {
    const optim::Ema::Scope averaged = ema.Swap();  // The model has the averages here.
    const NoGrad no_grad(mesh);
    Print("averaged", 20, nn::CrossEntropy(model(InputsOf(batch)), TargetsOf(batch)));
  }
  // docs/optimizers.md end
}

void TrainByMuon(const DeviceMesh& mesh) {
  const DTensor batch = MakeBatch(mesh);
  models::Llama model(kConfig);
  for (auto& block : model.Blocks()) fsdp::FullyShard(block, mesh);
  fsdp::FullyShard(model, mesh);
  model.Initialize(/*seed=*/1);
  // docs/optimizers.md begin
  std::vector<nn::Parameter> matrices, rest;
  for (auto& [name, parameter] : model.NamedParameters()) {
    const bool is_hidden = name.starts_with("model.layers.") && parameter.shape().size() == 2;
    (is_hidden ? matrices : rest).push_back(parameter);
  }
  optim::Muon muon(matrices, {.lr = 0.02});
  optim::AdamW adamw(rest, {.lr = 3e-3});
  for (int step = 0; step < 20; ++step) {
    DTensor loss = nn::CrossEntropy(model(InputsOf(batch)), TargetsOf(batch));
    Backward(loss);
    optim::ClipGradNorm(model.Parameters(), /*max_norm=*/1.0);
    muon.Step();
    adamw.Step();
    Print("muon", step, loss);
  }
  // docs/optimizers.md end
}

// docs/optimizers.md begin
struct HeavyBallOptions {
  double lr = 1e-3;
  double momentum = 0.9;
  std::vector<optim::OptionField> Fields() {
    return {{"lr", &lr}, {"momentum", &momentum, /*low=*/0, /*high=*/1}};
  }
};

/// p -= lr b, where b = momentum b + g.
class HeavyBall : public optim::OptimizerOf<HeavyBallOptions> {
 public:
  explicit HeavyBall(std::vector<nn::Parameter> parameters, const HeavyBallOptions& options = {},
                     const std::vector<optim::ParameterGroup<HeavyBallOptions>>& groups = {})
      : OptimizerOf("HeavyBall", std::move(parameters), options, groups) {}

 protected:
  std::vector<std::string> StateNames(const HeavyBallOptions&) const override {
    return {"momentum_buffer"};
  }
  void Update(const HeavyBallOptions& options, optim::ParameterUpdate& update) override {
    ExecutionContext& context = update.context;
    Tensor& ball = update.LocalState("momentum_buffer");
    ops::BinaryInto(context, BinaryOp::kMul, ball, options.momentum);
    ops::Accumulate(context, update.gradient, ball);
    ops::Accumulate(context, ops::Binary(context, BinaryOp::kMul, ball, -options.lr), update.value);
  }
};
// docs/optimizers.md end

void TrainByHeavyBall(const DeviceMesh& mesh) {
  const DTensor batch = MakeBatch(mesh);
  models::Llama model(kConfig);
  for (auto& block : model.Blocks()) fsdp::FullyShard(block, mesh);
  fsdp::FullyShard(model, mesh);
  model.Initialize(/*seed=*/1);
  HeavyBall optimizer(model.Parameters(), {.lr = 0.1});
  for (int step = 0; step < 20; ++step) {
    DTensor loss = nn::CrossEntropy(model(InputsOf(batch)), TargetsOf(batch));
    Backward(loss);
    optim::ClipGradNorm(optimizer.parameters(), /*max_norm=*/1.0);
    optimizer.Step();
    Print("ball", step, loss);
  }
}

// docs/checkpoints.md begin
StateDict StateOf(models::Llama& model, optim::Optimizer& optimizer, int64_t& step) {
  StateDict state;
  state.Merge("model", nn::State(model));  // Parameters, buffers, counters of dropout.
  state.Merge("optim", optimizer.State());
  state.Bind("step", &step);
  return state;
}
// docs/checkpoints.md end

void TrainAndSave(const DeviceMesh& mesh, const std::string& path) {
  const DTensor batch = MakeBatch(mesh);
  models::Llama model(kConfig);
  for (auto& block : model.Blocks()) fsdp::FullyShard(block, mesh);
  fsdp::FullyShard(model, mesh);
  model.Initialize(/*seed=*/1);
  optim::AdamW optimizer(model.Parameters(), {.lr = 3e-3});
  int64_t step = 0;
  // docs/checkpoints.md begin
  for (; step < 20; ++step) {
    if (step == 10) ThrowIfError(checkpoint::Save(path, StateOf(model, optimizer, step)));
    DTensor loss = nn::CrossEntropy(model(InputsOf(batch)), TargetsOf(batch));
    Backward(loss);
    optimizer.Step();
    Print("saved", static_cast<int>(step), loss);
  }
  // docs/checkpoints.md end
}

/// Prints from step 10 on what TrainAndSave does.
void GoOn(const DeviceMesh& mesh, const std::string& path) {
  const DTensor batch = MakeBatch(mesh);
  models::Llama model(kConfig);
  tp::Parallelize(model, mesh, "tp", models::LlamaTpPlan());
  for (auto& block : model.Blocks()) fsdp::FullyShard(block, mesh);
  fsdp::FullyShard(model, mesh);
  optim::AdamW optimizer(model.Parameters(), {.lr = 3e-3});
  int64_t step = 0;
  // docs/checkpoints.md begin
  StateDict state = StateOf(model, optimizer, step);
  ThrowIfError(checkpoint::Load(path, state));
  // docs/checkpoints.md end
  for (; step < 20; ++step) {
    DTensor loss = nn::CrossEntropy(model(InputsOf(batch)), TargetsOf(batch));
    Backward(loss);
    optimizer.Step();
    Print("resumed", static_cast<int>(step), loss);
  }
}

void TrainTensorParallel(const DeviceMesh& mesh) {
  const DTensor batch = MakeBatch(mesh);
  models::Llama model(kConfig);
  // docs/tp.md begin
  const Placement between = Shard(1);  // Sequence-parallel; Replicate() for plain TP.
  const std::string block = "model.layers.*.";
  tp::Parallelize(model, mesh, "tp",
                  {
                      {"model.embed_tokens", tp::Rowwise(between)},
                      {block + "input_layernorm", tp::Sequence()},
                      {block + "self_attn", tp::PrepareInput(Replicate())},
                      {block + "self_attn.q_proj", tp::Colwise()},
                      {block + "self_attn.k_proj", tp::Colwise()},
                      {block + "self_attn.v_proj", tp::Colwise()},
                      {block + "self_attn.o_proj", tp::Rowwise(between)},
                      {block + "post_attention_layernorm", tp::Sequence()},
                      {block + "mlp", tp::PrepareInput(Replicate())},
                      {block + "mlp.gate_proj", tp::Colwise()},
                      {block + "mlp.up_proj", tp::Colwise()},
                      {block + "mlp.down_proj", tp::Rowwise(between)},
                      {"model.norm", tp::Sequence()},
                      {"lm_head", tp::PrepareInput(Replicate())},
                      {"lm_head", tp::Colwise()},
                  });
  for (auto& layer : model.Blocks()) fsdp::FullyShard(layer, mesh);  // Along dp.
  fsdp::FullyShard(model, mesh);
  model.Initialize(/*seed=*/1);
  // docs/tp.md end
  optim::AdamW optimizer(model.Parameters(), {.lr = 3e-3});
  for (int step = 0; step < 20; ++step) {
    // docs/tp.md begin
    DTensor logits = model(InputsOf(batch));                    // [S(0), S(2)] @ [dp=2, tp=2]
    DTensor loss = nn::CrossEntropy(logits, TargetsOf(batch));  // Logits are not gathered.
    Backward(loss);
    // docs/tp.md end
    optim::ClipGradNorm(model.Parameters(), /*max_norm=*/1.0);
    optimizer.Step();
    Print("tp", step, loss);
  }
}

void TrainCheckpointed(const DeviceMesh& mesh) {
  const DTensor batch = MakeBatch(mesh);
  models::Llama model(kConfig);
  // docs/activation_checkpointing.md begin
  for (auto& block : model.Blocks()) nn::CheckpointActivations(block);
  for (auto& block : model.Blocks()) fsdp::FullyShard(block, mesh);
  fsdp::FullyShard(model, mesh);
  // docs/activation_checkpointing.md end
  model.Initialize(/*seed=*/1);
  optim::AdamW optimizer(model.Parameters(), {.lr = 3e-3});
  for (int step = 0; step < 20; ++step) {
    const DTensor loss = nn::CrossEntropy(model(InputsOf(batch)), TargetsOf(batch));
    Backward(loss);
    optimizer.Step();
    Print("checkpointed", step, loss);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::string path = std::string(argc > 1 ? argv[1] : "/tmp") + "/docs_example_step-10";
  const absl::Status status = RunRanks(4, [&](Communicator& world) {
    TrainFullyShard(DeviceMesh::Create(world, {{"dp", 4}}));
    TrainInF16(DeviceMesh::Create(world, {{"dp", 4}}));
    TrainInGroups(DeviceMesh::Create(world, {{"dp", 4}}));
    TrainByMuon(DeviceMesh::Create(world, {{"dp", 4}}));
    TrainByHeavyBall(DeviceMesh::Create(world, {{"dp", 4}}));
    TrainAndSave(DeviceMesh::Create(world, {{"dp", 4}}), path);
    GoOn(DeviceMesh::Create(world, {{"dp", 2}, {"tp", 2}}), path);
    TrainTensorParallel(DeviceMesh::Create(world, {{"dp", 2}, {"tp", 2}}));
    TrainCheckpointed(DeviceMesh::Create(world, {{"dp", 4}}));
  });
  if (!status.ok()) std::cerr << status << "\n";
  return status.ok() ? 0 : 1;
}
