# Write the records that m3agent.tools.runners.records reads. This text comes before each reporter in Ruby.
#
# The key is read and deleted here, before any code of the repository is loaded. Nothing is required that a Gemfile could
# pin to another version: `json` and `openssl` are gems, so strings are encoded by hand, and the HMAC is computed with Digest.

M3_LAUNCH = lambda do |library, optional, &main|
  report, key_file, known_file, files_file, per_test = ARGV.shift(5)
  gem_original_require "digest"
  key = [File.read(key_file)].pack("H*")
  File.delete(key_file)
  read_paths = lambda { |path| File.read(path, encoding: "UTF-8").split("\n") }
  known, files = read_paths.call(known_file), read_paths.call(files_file)

  padded = key.ljust(64, "\0").bytes
  inner = Digest::SHA256.new << padded.map { |byte| byte ^ 0x36 }.pack("C*")
  outer = Digest::SHA256.new << padded.map { |byte| byte ^ 0x5c }.pack("C*")
  output = File.open(report, File::WRONLY | File::CREAT | File::EXCL | File::APPEND, 0o600)
  number, process, lock = 0, Process.pid, Mutex.new

  quote = lambda do |text|
    clean = text.to_s.dup
    clean = clean.force_encoding("UTF-8") if clean.encoding == Encoding::BINARY
    clean = clean.encode("UTF-8", invalid: :replace, undef: :replace).scrub("?")
    escaped = clean.gsub(/["\\\u0000-\u001f\u007f]/) { |found| format('\\u%04x', found.ord) }
    %("#{escaped}")
  end
  encode = lambda do |value|
    case value
    when Array then "[#{value.map { |part| encode.call(part) }.join(",")}]"
    when Integer then value.to_s
    else quote.call(value)
    end
  end
  write = lambda do |*record|
    next unless Process.pid == process # a process that a test forked

    lock.synchronize do
      number += 1
      body = "#{number}\t#{encode.call(record)}".b
      code = (outer.dup << (inner.dup << body).digest).hexdigest
      output.syswrite("#{body}\t#{code}\n".b)
    end
  end

  # Code that looks for this reporter's variables wants to write records itself.
  mine = __FILE__
  ObjectSpace.singleton_class.prepend(Module.new do
    define_method(:each_object) do |*wanted, &block|
      kind = wanted.first
      write.call("tampering", "ObjectSpace was searched for #{kind || "everything"}") unless kind.is_a?(Module) && kind <= Module
      super(*wanted, &block)
    end
  end)
  [[Proc, ->(proc) { proc.source_location&.first }], [TracePoint, ->(point) { point.path }]].each do |owner, file_of|
    owner.prepend(Module.new do
      define_method(:binding) do
        write.call("tampering", "#{owner}#binding was called on the test reporter") if file_of.call(self) == mine
        super()
      end
    end)
  end

  # Loads the locked gems. Without them all, the tests may still run with those that are installed.
  begin
    require "bundler/setup" if File.exist?(ENV.fetch("BUNDLE_GEMFILE", "Gemfile"))
  rescue StandardError, LoadError, SystemExit => error
    warn "m3agent: the gems of the Gemfile cannot be used: #{error.message.lines.first}"
  end

  # Functions that decide results: for each method of the modules, the definition that a call finds.
  watched = lambda do |modules, ignored|
    modules.each_with_object({}) do |owner, found|
      (owner.instance_methods + owner.private_instance_methods - Object.private_instance_methods).each do |name|
        found["#{owner}##{name}"] = owner.instance_method(name) unless ignored.include?(name)
      end
      owner.singleton_methods.each { |name| found["#{owner}.#{name}"] = owner.method(name).unbind }
    end
  end
  # Raises in a test that takes too long, so that the others still run.
  timers = {}
  Thread.new do
    loop do
      sleep 0.2
      timers.each do |thread, deadline|
        next if Process.clock_gettime(Process::CLOCK_MONOTONIC) < deadline

        timers.delete(thread)
        thread.raise(RuntimeError, "m3agent: the test took more than #{per_test} s")
      end
    end
  end
  timed = lambda do |&test|
    timers[Thread.current] = Process.clock_gettime(Process::CLOCK_MONOTONIC) + per_test.to_f
    begin
      test.call
    ensure
      timers.delete(Thread.current)
    end
  end
  require library
  optional.each do |name|
    require name
  rescue LoadError # of another version, or not used by the project
    nil
  end
  # Only now, so that no file of the repository takes the place of the library.
  $LOAD_PATH.unshift(*%w[lib test spec].map { |folder| File.expand_path(folder) }.select { |path| File.directory?(path) })
  relative = lambda { |path| path.to_s.delete_prefix("#{Dir.pwd}/").delete_prefix("./") }
  files.each { |file| write.call("plan", file) }
  main.call(write, known, files, watched, timed, relative)
  $stdout.flush
  $stderr.flush
  exit!(0) # the results are in the report; `at_exit` blocks of the repository must not run the tests again
end
