// The functions of TensorFlow's C API that are used here, declared again: the core is built without TensorFlow, and
// finds them in the libraries that Python has loaded.  Signatures: tensorflow/c/{kernels,ops,tf_status,tf_tensor}.h of
// 2.21.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

namespace pc::tensorflow {

struct TF_KernelBuilder;
struct TF_OpDefinitionBuilder;
struct TF_OpKernelConstruction;
struct TF_OpKernelContext;
struct TF_ShapeInferenceContext;
struct TF_Status;
struct TF_Tensor;

enum TF_Code : int { TF_OK = 0, TF_CANCELLED = 1, TF_UNKNOWN = 2, TF_INTERNAL = 13 };
enum TF_DataType : int {};

using Create = void*(TF_OpKernelConstruction*);
// `done` is the address of a std::function<void()> that is gone when the function returns.
using ComputeAsync = void(void* kernel, TF_OpKernelContext*, void* done);
using Delete = void(void* kernel);
using InferShapes = void(TF_ShapeInferenceContext*, TF_Status*);

// clang-format off
#define PC_TENSORFLOW_FUNCTIONS(X)                                                                                    \
  X(TF_NewStatus, TF_Status*())                                                                                       \
  X(TF_DeleteStatus, void(TF_Status*))                                                                                \
  X(TF_SetStatus, void(TF_Status*, TF_Code, const char* message))                                                     \
  X(TF_GetCode, TF_Code(const TF_Status*))                                                                            \
  X(TF_Message, const char*(const TF_Status*))                                                                        \
  X(TF_DeleteTensor, void(TF_Tensor*))                                                                                \
  X(TF_TensorType, TF_DataType(const TF_Tensor*))                                                                     \
  X(TF_NumDims, int(const TF_Tensor*))                                                                                \
  X(TF_Dim, int64_t(const TF_Tensor*, int))                                                                           \
  X(TF_TensorData, void*(const TF_Tensor*))                                                                           \
  X(TF_NewOpDefinitionBuilder, TF_OpDefinitionBuilder*(const char* name))                                             \
  X(TF_OpDefinitionBuilderAddAttr, void(TF_OpDefinitionBuilder*, const char* spec))                                   \
  X(TF_OpDefinitionBuilderAddInput, void(TF_OpDefinitionBuilder*, const char* spec))                                  \
  X(TF_OpDefinitionBuilderAddOutput, void(TF_OpDefinitionBuilder*, const char* spec))                                 \
  X(TF_OpDefinitionBuilderSetIsStateful, void(TF_OpDefinitionBuilder*, bool))                                         \
  X(TF_OpDefinitionBuilderSetShapeInferenceFunction, void(TF_OpDefinitionBuilder*, InferShapes*))                     \
  X(TF_RegisterOpDefinition, void(TF_OpDefinitionBuilder*, TF_Status*))                                               \
  X(TF_ShapeInferenceContextSetUnknownShape, void(TF_ShapeInferenceContext*, TF_Status*))                             \
  X(TF_NewAsyncKernelBuilder, TF_KernelBuilder*(const char* op, const char* device, Create*, ComputeAsync*, Delete*)) \
  X(TF_RegisterKernelBuilder, void(const char* name, TF_KernelBuilder*, TF_Status*))                                  \
  X(TF_OpKernelConstruction_GetAttrInt64, void(TF_OpKernelConstruction*, const char* name, int64_t*, TF_Status*))     \
  X(TF_OpKernelConstruction_Failure, void(TF_OpKernelConstruction*, TF_Status*))                                      \
  X(TF_NumInputs, int(TF_OpKernelContext*))                                                                           \
  X(TF_GetInput, void(TF_OpKernelContext*, int, TF_Tensor**, TF_Status*))                                             \
  X(TF_NumOutputs, int(TF_OpKernelContext*))                                                                          \
  X(TF_ExpectedOutputDataType, TF_DataType(TF_OpKernelContext*, int))                                                 \
  X(TF_AllocateOutput, TF_Tensor*(TF_OpKernelContext*, int, TF_DataType, const int64_t* extents, int dims,            \
                                  size_t bytes, TF_Status*))                                                          \
  X(TF_OpKernelContext_Failure, void(TF_OpKernelContext*, TF_Status*))
// clang-format on

struct Functions {
#define PC_MEMBER(name, ...) std::add_pointer_t<__VA_ARGS__> name = nullptr;
  PC_TENSORFLOW_FUNCTIONS(PC_MEMBER)
#undef PC_MEMBER
};

// Of this process; null before `resolve`.
extern Functions tf;

// Finds them in the given libraries, of which those are skipped that are not loaded.  Throws SystemFailure with the
// name of a function that none of them has.
void resolve(const std::vector<std::string>& libraries);

class Status {
 public:
  Status() : status_(tf.TF_NewStatus()) {}
  ~Status() { tf.TF_DeleteStatus(status_); }
  Status(const Status&) = delete;
  operator TF_Status*() const { return status_; }
  // Throws SystemFailure, with the message, unless it is good.
  void check() const;

 private:
  TF_Status* status_;
};

}  // namespace pc::tensorflow
