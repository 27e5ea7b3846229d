#include "core/text/stream_decoder.h"

#include <algorithm>
#include <utility>

#include "core/base/utf8.h"

namespace octet {
namespace {

bool IsUtf8(std::string_view text) {
  while (!text.empty()) {
    const Utf8Char first = FirstUtf8Char(text);
    if (first.kind != Utf8Char::Kind::kValid) return false;
    text.remove_prefix(first.size);
  }
  return true;
}

std::vector<size_t> Fallback(std::string_view text) {
  std::vector<size_t> fallback(text.size(), 0);
  for (size_t i = 1, matched = 0; i < text.size(); ++i) {
    while (matched > 0 && text[i] != text[matched]) matched = fallback[matched - 1];
    if (text[i] == text[matched]) ++matched;
    fallback[i] = matched;
  }
  return fallback;
}

}  // namespace

absl::StatusOr<StreamDecoder> StreamDecoder::Create(const std::vector<std::string>& stop_strings) {
  StreamDecoder decoder;
  for (const std::string& text : stop_strings) {
    if (text.empty()) return absl::InvalidArgumentError("a stop string is empty; leave it out instead");
    if (!IsUtf8(text)) return absl::InvalidArgumentError("a stop string is not UTF-8, so no text can contain it");
    decoder.stops_.push_back({text, Fallback(text)});
  }
  return decoder;
}

std::string StreamDecoder::Push(std::string_view bytes) {
  if (stopped_) return {};
  partial_ += bytes;
  std::string_view rest = partial_;
  while (!rest.empty() && !stopped_) {
    const Utf8Char first = FirstUtf8Char(rest);
    if (first.kind == Utf8Char::Kind::kIncomplete) break;
    Take(first.kind == Utf8Char::Kind::kValid ? rest.substr(0, first.size) : kReplacementChar);
    rest.remove_prefix(first.size);
  }
  partial_.erase(0, partial_.size() - rest.size());
  return Release();
}

std::string StreamDecoder::Finish() {
  if (stopped_) return {};
  if (!partial_.empty()) Take(kReplacementChar);
  partial_.clear();
  if (!stopped_) {
    for (Stop& stop : stops_) stop.matched = 0;
  }
  return Release();
}

void StreamDecoder::Take(std::string_view character) {
  for (char byte : character) {
    held_.push_back(byte);
    size_t longest = 0;
    for (Stop& stop : stops_) {
      while (stop.matched > 0 && stop.text[stop.matched] != byte) stop.matched = stop.fallback[stop.matched - 1];
      if (stop.text[stop.matched] == byte) ++stop.matched;
      if (stop.matched == stop.text.size() && stop.matched > longest) {
        longest = stop.matched;
        stop_string_ = stop.text;
      }
    }
    if (longest > 0) {
      stopped_ = true;
      held_.resize(held_.size() - longest);
      return;
    }
  }
}

std::string StreamDecoder::Release() {
  size_t keep = 0;
  if (!stopped_) {
    for (const Stop& stop : stops_) keep = std::max(keep, stop.matched);
  }
  std::string ready = held_.substr(0, held_.size() - keep);
  held_.erase(0, ready.size());
  return ready;
}

}  // namespace octet
