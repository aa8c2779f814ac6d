// SPDX-License-Identifier: Apache-2.0
#ifndef SHARDMESH_MODELS_LLAMA_LLAMA_CONFIG_JSON_H_
#define SHARDMESH_MODELS_LLAMA_LLAMA_CONFIG_JSON_H_

#include <string>

#include "shardmesh/models/llama/llama_config.h"

namespace shardmesh::models {

/// The text of a config.json that transformers and LlamaConfig::FromJson read.
std::string ToJson(const LlamaConfig& config);

}  // namespace shardmesh::models

#endif  // SHARDMESH_MODELS_LLAMA_LLAMA_CONFIG_JSON_H_
