/* Sizes and offsets of the C contract, pinned: a change of either is a change of the ABI. Compiled as C11 with -Wpadded
 * as an error, so that no struct has room in which a later field could hide. */
#include <assert.h>
#include <stddef.h>
#include <stdio.h>

#include "octet/abi.h"

#define SIZE(type, bytes) static_assert(sizeof(type) == (bytes), #type " has changed its size")
#define AT(type, field, bytes) static_assert(offsetof(type, field) == (bytes), #type "." #field " has moved")

SIZE(octet_error, 1024);
AT(octet_error, struct_size, 0);
AT(octet_error, code, 4);
AT(octet_error, native_code, 8);
AT(octet_error, message_len, 12);
AT(octet_error, message, 16);

SIZE(octet_tensor, 104);
AT(octet_tensor, buffer, 0);
AT(octet_tensor, offset, 8);
AT(octet_tensor, dtype, 16);
AT(octet_tensor, rank, 20);
AT(octet_tensor, shape, 24);
AT(octet_tensor, stride, 64);

SIZE(octet_host_v1, 40);
AT(octet_host_v1, struct_size, 0);
AT(octet_host_v1, abi_minor, 4);
AT(octet_host_v1, ctx, 8);
AT(octet_host_v1, log, 16);
AT(octet_host_v1, parallel_for, 24);
AT(octet_host_v1, max_workers, 32);
AT(octet_host_v1, reserved, 36);

SIZE(octet_device_info, 120);
AT(octet_device_info, struct_size, 0);
AT(octet_device_info, kind, 4);
AT(octet_device_info, name, 8);
AT(octet_device_info, arch, 72);
AT(octet_device_info, memory_bytes, 104);
AT(octet_device_info, preferred_alignment, 112);
AT(octet_device_info, lanes, 116);

SIZE(octet_support, 352);
AT(octet_support, struct_size, 0);
AT(octet_support, level, 4);
AT(octet_support, workspace_bytes, 8);
AT(octet_support, resident_bytes, 16);
AT(octet_support, q_row_bytes, 24);
AT(octet_support, reason, 32);
AT(octet_support, kernel, 288);

SIZE(octet_cache_side, 136);
AT(octet_cache_side, struct_size, 0);
AT(octet_cache_side, data_type, 4);
AT(octet_cache_side, scheme, 8);
AT(octet_cache_side, axis, 12);
AT(octet_cache_side, group, 16);
AT(octet_cache_side, scale_type, 20);
AT(octet_cache_side, zero_type, 24);
AT(octet_cache_side, head_dim, 28);
AT(octet_cache_side, rotation, 32);
AT(octet_cache_side, order, 36);
AT(octet_cache_side, data_base, 40);
AT(octet_cache_side, scale_base, 48);
AT(octet_cache_side, zero_base, 56);
AT(octet_cache_side, data_stride, 64);
AT(octet_cache_side, scale_stride, 88);
AT(octet_cache_side, zero_stride, 112);

SIZE(octet_kv_layout, 56);
AT(octet_kv_layout, struct_size, 0);
AT(octet_kv_layout, page_tokens, 4);
AT(octet_kv_layout, kv_heads, 8);
AT(octet_kv_layout, num_pages, 12);
AT(octet_kv_layout, offset_block, 16);
AT(octet_kv_layout, reserved, 20);
AT(octet_kv_layout, layer_bytes, 24);
AT(octet_kv_layout, k, 32);
AT(octet_kv_layout, v, 40);
AT(octet_kv_layout, k_extra, 48);

SIZE(octet_kv_layer, 72);
AT(octet_kv_layer, struct_size, 0);
AT(octet_kv_layer, layer, 4);
AT(octet_kv_layer, cache, 8);
AT(octet_kv_layer, cache_offset, 16);
AT(octet_kv_layer, k_offset, 24);
AT(octet_kv_layer, k_scale, 32);
AT(octet_kv_layer, k_zero, 40);
AT(octet_kv_layer, v_scale, 48);
AT(octet_kv_layer, v_zero, 56);
AT(octet_kv_layer, sinks, 64);

SIZE(octet_kv_tokens, 40);
AT(octet_kv_tokens, struct_size, 0);
AT(octet_kv_tokens, reserved, 4);
AT(octet_kv_tokens, k, 8);
AT(octet_kv_tokens, v, 16);
AT(octet_kv_tokens, slots, 24);
AT(octet_kv_tokens, positions, 32);

SIZE(octet_limits, 32);
AT(octet_limits, struct_size, 0);
AT(octet_limits, requests, 4);
AT(octet_limits, query_tokens, 8);
AT(octet_limits, reserved, 12);
AT(octet_limits, kv_len, 16);
AT(octet_limits, pages, 24);

SIZE(octet_attention_desc, 64);
AT(octet_attention_desc, struct_size, 0);
AT(octet_attention_desc, q_heads, 4);
AT(octet_attention_desc, causal, 8);
AT(octet_attention_desc, window, 12);
AT(octet_attention_desc, scale, 16);
AT(octet_attention_desc, softcap, 20);
AT(octet_attention_desc, q_type, 24);
AT(octet_attention_desc, out_type, 28);
AT(octet_attention_desc, compute, 32);
AT(octet_attention_desc, reserved, 36);
AT(octet_attention_desc, kv, 40);
AT(octet_attention_desc, limits, 48);
AT(octet_attention_desc, alibi_slopes, 56);

SIZE(octet_batch, 48);
AT(octet_batch, struct_size, 0);
AT(octet_batch, requests, 4);
AT(octet_batch, q_start, 8);
AT(octet_batch, kv_len, 16);
AT(octet_batch, kv_begin, 24);
AT(octet_batch, page_start, 32);
AT(octet_batch, pages, 40);

SIZE(octet_attention_args, 40);
AT(octet_attention_args, struct_size, 0);
AT(octet_attention_args, reserved, 4);
AT(octet_attention_args, q, 8);
AT(octet_attention_args, out, 16);
AT(octet_attention_args, lse, 24);
AT(octet_attention_args, mask, 32);

SIZE(octet_memory_info, 32);
AT(octet_memory_info, struct_size, 0);
AT(octet_memory_info, reserved, 4);
AT(octet_memory_info, free_bytes, 8);
AT(octet_memory_info, total_bytes, 16);
AT(octet_memory_info, held_bytes, 24);

SIZE(octet_weight_part, 40);
AT(octet_weight_part, struct_size, 0);
AT(octet_weight_part, dtype, 4);
AT(octet_weight_part, rows, 8);
AT(octet_weight_part, row_stride_bytes, 16);
AT(octet_weight_part, data, 24);
AT(octet_weight_part, row_scale, 32);

SIZE(octet_weight_desc, 40);
AT(octet_weight_desc, struct_size, 0);
AT(octet_weight_desc, num_parts, 4);
AT(octet_weight_desc, columns, 8);
AT(octet_weight_desc, parts, 16);
AT(octet_weight_desc, use, 24);
AT(octet_weight_desc, max_tokens, 28);
AT(octet_weight_desc, x_type, 32);
AT(octet_weight_desc, y_type, 36);

SIZE(octet_linear_args, 72);
AT(octet_linear_args, struct_size, 0);
AT(octet_linear_args, norm_eps, 4);
AT(octet_linear_args, x, 8);
AT(octet_linear_args, y, 16);
AT(octet_linear_args, bias, 24);
AT(octet_linear_args, norm_gain, 32);
AT(octet_linear_args, residual, 40);
AT(octet_linear_args, w, 48);
AT(octet_linear_args, workspace, 56);
AT(octet_linear_args, workspace_offset, 64);

SIZE(octet_qkv_append_args, 80);
AT(octet_qkv_append_args, struct_size, 0);
AT(octet_qkv_append_args, rope_interleaved, 4);
AT(octet_qkv_append_args, qk_norm_eps, 8);
AT(octet_qkv_append_args, reserved, 12);
AT(octet_qkv_append_args, qkv, 16);
AT(octet_qkv_append_args, bias, 24);
AT(octet_qkv_append_args, q_gain, 32);
AT(octet_qkv_append_args, k_gain, 40);
AT(octet_qkv_append_args, cos_sin, 48);
AT(octet_qkv_append_args, positions, 56);
AT(octet_qkv_append_args, slots, 64);
AT(octet_qkv_append_args, q_out, 72);

SIZE(octet_sample_args, 48);
AT(octet_sample_args, struct_size, 0);
AT(octet_sample_args, softcap, 4);
AT(octet_sample_args, logits, 8);
AT(octet_sample_args, params, 16);
AT(octet_sample_args, history, 24);
AT(octet_sample_args, ids, 32);
AT(octet_sample_args, logprobs, 40);

SIZE(octet_device_ops, 40);
AT(octet_device_ops, struct_size, 0);
AT(octet_device_ops, reserved, 4);
AT(octet_device_ops, count, 8);
AT(octet_device_ops, describe, 16);
AT(octet_device_ops, open, 24);
AT(octet_device_ops, close, 32);

SIZE(octet_memory_ops, 72);
AT(octet_memory_ops, struct_size, 0);
AT(octet_memory_ops, reserved, 4);
AT(octet_memory_ops, info, 8);
AT(octet_memory_ops, alloc, 16);
AT(octet_memory_ops, free, 24);
AT(octet_memory_ops, map, 32);
AT(octet_memory_ops, write, 40);
AT(octet_memory_ops, read, 48);
AT(octet_memory_ops, copy, 56);
AT(octet_memory_ops, fill, 64);

SIZE(octet_stream_ops, 72);
AT(octet_stream_ops, struct_size, 0);
AT(octet_stream_ops, reserved, 4);
AT(octet_stream_ops, create, 8);
AT(octet_stream_ops, destroy, 16);
AT(octet_stream_ops, sync, 24);
AT(octet_stream_ops, create_event, 32);
AT(octet_stream_ops, destroy_event, 40);
AT(octet_stream_ops, record, 48);
AT(octet_stream_ops, wait, 56);
AT(octet_stream_ops, event_sync, 64);

SIZE(octet_quant_ops, 64);
AT(octet_quant_ops, struct_size, 0);
AT(octet_quant_ops, reserved, 4);
AT(octet_quant_ops, choose_layout, 8);
AT(octet_quant_ops, supports, 16);
AT(octet_quant_ops, append, 24);
AT(octet_quant_ops, gather, 32);
AT(octet_quant_ops, copy_pages, 40);
AT(octet_quant_ops, export_pages, 48);
AT(octet_quant_ops, import_pages, 56);

SIZE(octet_attention_ops, 48);
AT(octet_attention_ops, struct_size, 0);
AT(octet_attention_ops, reserved, 4);
AT(octet_attention_ops, supports, 8);
AT(octet_attention_ops, make_plan, 16);
AT(octet_attention_ops, refill, 24);
AT(octet_attention_ops, run, 32);
AT(octet_attention_ops, release_plan, 40);

SIZE(octet_dense_ops, 88);
AT(octet_dense_ops, struct_size, 0);
AT(octet_dense_ops, reserved, 4);
AT(octet_dense_ops, supports_weight, 8);
AT(octet_dense_ops, prepare_weight, 16);
AT(octet_dense_ops, release_weight, 24);
AT(octet_dense_ops, linear, 32);
AT(octet_dense_ops, embed, 40);
AT(octet_dense_ops, norm, 48);
AT(octet_dense_ops, rope, 56);
AT(octet_dense_ops, activation, 64);
AT(octet_dense_ops, add, 72);
AT(octet_dense_ops, gather_rows, 80);

SIZE(octet_fused_ops, 32);
AT(octet_fused_ops, struct_size, 0);
AT(octet_fused_ops, reserved, 4);
AT(octet_fused_ops, supports, 8);
AT(octet_fused_ops, qkv_append, 16);
AT(octet_fused_ops, sample, 24);

SIZE(octet_graph_ops, 40);
AT(octet_graph_ops, struct_size, 0);
AT(octet_graph_ops, reserved, 4);
AT(octet_graph_ops, begin, 8);
AT(octet_graph_ops, end, 16);
AT(octet_graph_ops, launch, 24);
AT(octet_graph_ops, release, 32);

SIZE(octet_backend_v1, 120);
AT(octet_backend_v1, struct_size, 0);
AT(octet_backend_v1, abi_minor, 4);
AT(octet_backend_v1, abi_draft, 8);
AT(octet_backend_v1, reserved, 12);
AT(octet_backend_v1, name, 16);
AT(octet_backend_v1, vendor, 24);
AT(octet_backend_v1, version, 32);
AT(octet_backend_v1, build, 40);
AT(octet_backend_v1, device, 48);
AT(octet_backend_v1, memory, 56);
AT(octet_backend_v1, stream, 64);
AT(octet_backend_v1, quant, 72);
AT(octet_backend_v1, attention, 80);
AT(octet_backend_v1, dense, 88);
AT(octet_backend_v1, fused, 96);
AT(octet_backend_v1, graph, 104);
AT(octet_backend_v1, extension, 112);

int main(void) {
  octet_error error = {sizeof error, OCTET_OK, 0, 0, ""};
  octet_backend_v1 table = {0};
  table.struct_size = offsetof(octet_backend_v1, fused);
  /* A shorter table reads as "entry absent", an unset entry too. */
  if (OCTET_HAS(&table, fused) || OCTET_HAS(&table, name) || !OCTET_HAS(&error, struct_size)) {
    puts("OCTET_HAS is wrong");
    return 1;
  }
  return 0;
}
