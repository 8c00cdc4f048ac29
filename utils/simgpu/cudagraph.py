CUDAGraph = graph = graph_pool_handle = is_current_stream_capturing = None
